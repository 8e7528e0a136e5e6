"""Tiny runs in the place of the shipped models: what they are packed from, and the package's folder with them in it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from unsmooth.models import demo
from unsmooth.training import Config, override, recipe, train_all

REMEDIES: dict[str, tuple[str, ...]] = {"plain": (), "sharpen": ("sharpen",), "smooth": ("smooth",)}


def tiny_config() -> Config:
    """Eight steps on made-up images of a hundred classes."""
    return override(
        recipe("vit_cifar100", "tiny"),
        {
            "data.name": "synthetic",
            "depth": 3,
            "dim": 32,
            "hidden": 64,
            "train_limit": 200,
            "test_limit": 100,
            "batch": 50,
            "epochs": 2,
            "schedule.warmup": 1,
            "measuring.at": (),
            "measuring.sequences": 8,
            "engine.device": "cpu",
        },
    )


def train_runs(out: Path) -> Path:
    """The three, as the study lays them out."""
    base = tiny_config()
    train_all({f"{name}/seed-0": replace(base, remedies=given) for name, given in REMEDIES.items()}, out)
    return out


def pack_standins(runs: Path, home: Path) -> Path:
    """A folder as the package has it, with the real images; skips where those are absent."""
    from benchmarks import demo_models

    images = demo.HOME / demo.IMAGES_FILE
    if not images.is_file():
        pytest.skip("the demo images are not in this checkout")
    home.mkdir(parents=True, exist_ok=True)
    (home / demo.IMAGES_FILE).write_bytes(images.read_bytes())
    for name in demo.NAMES:
        demo_models.pack(demo_models.from_run(runs / name / "seed-0", home / "none"), home / name)
    return home
