"""Which models there are to look at: those that come with the package, and those that the bench was given."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from unsmooth.evidence.bench import Bench, Specimen
from unsmooth.models import demo
from unsmooth.models.load import load
from unsmooth.models.packaged import PACKAGED
from unsmooth.networks import ViT, ViTConfig

BATCH, LENGTH = 4, 96
SEEDS = (0, 1)
SMALL_VIT = ViTConfig(depth=3, dim=16, heads=2, hidden=32, image=8, patch=2, classes=4)


def at_hand(bench: Bench) -> list[Specimen]:
    """All specimens, each name once: the bench's own take the place of those that come with the package.

    At the smallest scale, which only shows that everything runs, those are two small random networks.
    """
    given = {one.name: one for one in bench.specimens}
    shipped = _random(bench) if bench.scale == "tiny" else [*_demo(bench), *_packaged(bench)]
    return [*given.values(), *(one for one in shipped if one.name not in given)]


def family(specimen: Specimen) -> str:
    """What a specimen shares with those that were trained from the same weights.

    >>> family(Specimen("bert", load=nn.Identity, data=list)), family(Specimen("b", nn.Identity, list, lineage="bert"))
    ('bert', 'bert')
    """
    return specimen.lineage or specimen.name


def _demo(bench: Bench) -> list[Specimen]:
    """Our own three models, plain, sharpened and smoothed; random networks where they were not shipped."""
    if not demo.built():
        return _random(bench)
    count, options = _count(bench), _options(bench)
    names = [f"{demo.PREFIX}{name}" for name in demo.NAMES]
    return [Specimen(name, partial(load, name), partial(demo.shown, name, count), options, ours=True) for name in names]


def _random(bench: Bench) -> list[Specimen]:
    options = _options(bench)
    return [
        Specimen(
            name=f"random ViT {seed}",
            load=partial(_random_vit, seed),
            data=partial(_random_images, seed, _count(bench)),
            options=options,
            ours=True,
            trained=False,
        )
        for seed in SEEDS
    ]


def _random_vit(seed: int) -> nn.Module:
    return ViT(SMALL_VIT, seed=seed).eval()


def _random_images(seed: int, count: int) -> Tensor:
    side = SMALL_VIT.image
    return torch.randn(count, SMALL_VIT.channels, side, side, generator=torch.Generator().manual_seed(seed))


def _packaged(bench: Bench) -> list[Specimen]:
    """Models of installed packages, on the page of text that `unsmooth scan` reads unasked."""
    options = {**_options(bench), "max_length": LENGTH}
    present = [model for model in PACKAGED if model.find() is not None]
    return [Specimen(model.name, partial(load, model.name), _page, options) for model in present]


def _page() -> list[str]:
    from importlib.resources import as_file, files

    from unsmooth.scanning.data import read_texts

    with as_file(files("unsmooth.scanning") / "page.txt") as path:
        return read_texts(path)


def _options(bench: Bench) -> dict[str, Any]:
    """The same of `scan` and `explain`: so many sequences at most."""
    return {"batch_size": BATCH, "max_batches": _count(bench) // BATCH}


def _count(bench: Bench) -> int:
    return bench.pick(BATCH, 4 * BATCH, 8 * BATCH)
