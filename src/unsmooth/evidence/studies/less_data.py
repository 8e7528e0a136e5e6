"""Plain, sharpened and smoothed ViT-Ti on a quarter and on a tenth of CIFAR-100.

As `steering` in everything but the number of training images, equally many of each class: 100 epochs of fewer images
are fewer steps.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from unsmooth.evidence.bench import Bench
from unsmooth.evidence.studies.images import cut
from unsmooth.evidence.studies.steering import FULL, VARIANTS
from unsmooth.evidence.study import Study, study
from unsmooth.training import Config

WHOLE = 50_000
PERCENT = (10, 25)


@study
class LessData(Study):
    """Three variants on two amounts of data."""

    name: ClassVar[str] = "less_data"
    about: ClassVar[str] = "ViT-Ti on 10 % and 25 % of CIFAR-100, patch 4, 100 epochs: plain, sharpen, smooth"

    def configs(self, bench: Bench) -> dict[str, Config]:
        """The six, as "plain-10"."""
        base = cut("vit_cifar100", bench, FULL)
        if bench.scale == "tiny":
            base = replace(base, epochs=1)
        whole = base.data.train_limit or WHOLE
        return {
            f"{variant}-{percent}": replace(
                base, remedies=remedies, data=replace(base.data, train_limit=whole * percent // 100)
            )
            for percent in PERCENT
            for variant, remedies in VARIANTS.items()
        }
