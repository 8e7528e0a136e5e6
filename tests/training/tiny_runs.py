"""Runs of a few steps on a handful of made-up images, and what is compared of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor

from unsmooth.networks.config import ViTConfig
from unsmooth.training import Config
from unsmooth.training.augment.pipeline import AugmentConfig
from unsmooth.training.config import DataConfig, Engine, Measuring, OptimiserConfig, Schedule
from unsmooth.training.plain import override

TIMINGS = ("samples_per_second",)


def tiny(**changes: Any) -> Config:
    """Four steps with everything on: augmentation, mixing, stochastic depth, clipping, a moving average.

    Args:
        changes: Settings by their path, with __ for dots.
    """
    base = Config(
        recipe="vit_cifar100",
        task="images",
        network=ViTConfig(
            image=8, patch=4, classes=4, depth=2, dim=8, heads=2, hidden=16, drop_path=0.3, dropout=0.1, qkv_bias=False
        ),
        data=DataConfig(name="synthetic", train_limit=24, test_limit=8),
        augment=AugmentConfig(crop_pad=1, flip=0.5, mixup=1.0, cutmix=0.8, smoothing=0.1, classes=4),
        size="tiny",
        steps=4,
        batch=8,
        ema=0.5,
        log_every=1,
        evaluate_every=2,
        checkpoint_every=1,
        optimiser=OptimiserConfig(lr=1e-2, clip=1.0),
        schedule=Schedule(warmup=1),
        measuring=Measuring(sequences=2, metrics=("mean_cosine",)),
        engine=Engine(device="cpu", deterministic=True),
    )
    return override(base, {name.replace("__", "."): value for name, value in changes.items()})


def weights(folder: Path) -> dict[str, Tensor]:
    """Everything in the final folders, by file and name."""
    files = sorted(folder.glob("final*/*.safetensors"))
    assert files, f"no final weights in {folder}"
    return {
        f"{file.parent.name}/{file.name}/{name}": value for file in files for name, value in load_file(file).items()
    }


def lines(folder: Path, name: str = "log.jsonl") -> list[dict[str, Any]]:
    """The log without timings."""
    found = [json.loads(line) for line in (folder / name).read_text().splitlines()]
    return [{key: value for key, value in line.items() if key not in TIMINGS} for line in found]


def assert_same_run(first: Path, second: Path) -> None:
    """The same final weights to the bit, the same log, spectra and scans."""
    mine, other = weights(first), weights(second)
    assert mine.keys() == other.keys()
    differing = [name for name, value in mine.items() if value.numpy().tobytes() != other[name].numpy().tobytes()]
    assert not differing, differing
    assert lines(first) == lines(second)
    assert lines(first, "spectra.jsonl") == lines(second, "spectra.jsonl")
    for scan in sorted(first.glob("scans/*/scan.csv")):
        assert scan.read_bytes() == (second / scan.relative_to(first)).read_bytes()
