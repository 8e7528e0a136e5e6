"""Plain, sharpened and smoothed ViT-Ti with patches of two pixels, as in Park & Kim's recipe: 257 tokens.

Only the length is cut: 60 epochs instead of 300. The learning rate is the recipe's own, 1.25e-4. One seed, so no claim
is judged by it: it tells whether what `steering` shows with 65 tokens is also seen with four times as many.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from unsmooth.evidence.bench import Bench
from unsmooth.evidence.studies.images import cut
from unsmooth.evidence.studies.steering import FULL as STEERING
from unsmooth.evidence.studies.steering import VARIANTS
from unsmooth.evidence.study import Study, study
from unsmooth.training import Config, override

FULL = {key: value for key, value in STEERING.items() if key not in ("patch", "lr")} | {"epochs": 60}


@study
class FinerPatches(Study):
    """The variants of `steering`, with four times as many tokens."""

    name: ClassVar[str] = "finer_patches"
    about: ClassVar[str] = "ViT-Ti on CIFAR-100, patch 2, 60 epochs, one seed: plain, sharpen, smooth"

    def configs(self, bench: Bench) -> dict[str, Config]:
        """The three."""
        base = override(cut("vit_cifar100", bench, FULL), bench.pick({"patch": 4, "epochs": 1}, {"patch": 4}, {}))
        return {variant: replace(base, remedies=remedies) for variant, remedies in VARIANTS.items()}

    def seeds(self, bench: Bench) -> tuple[int, ...]:
        """The first."""
        return bench.seeds[:1]
