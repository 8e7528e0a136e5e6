"""Settings that the studies on images share: how a recipe is cut down for each scale."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from unsmooth.evidence.bench import Bench
from unsmooth.training import Config, override, recipe

IN_SECONDS: Mapping[str, Any] = {
    # Named, so that no data that happens to be there changes what the smallest scale does.
    "data.name": "synthetic",
    "network.classes": 10,
    "augment.classes": 10,
    "patch": 8,
    "depth": 3,
    "dim": 32,
    "heads": 2,
    "hidden": 64,
    "train_limit": 320,
    "test_limit": 100,
    "batch": 32,
    "epochs": 2,
    "schedule.warmup": 0.2,
    "lr": 2e-3,
    "precision": "float32",
    "measuring.every": 1,
    "measuring.at": (),
    "measuring.sequences": 16,
    "evaluate_every": 2,
    "checkpoint_every": 2,
    "log_every": 10,
}
IN_MINUTES: Mapping[str, Any] = {
    "patch": 8,
    "depth": 6,
    "dim": 64,
    "heads": 2,
    "hidden": 256,
    "train_limit": 10_000,
    "test_limit": 2_000,
    "batch": 100,
    "epochs": 6,
    "schedule.warmup": 1,
    "lr": 1e-3,
    "precision": "float32",
    "measuring.every": 2,
    "measuring.at": (0.5, 1),
    "evaluate_every": 2,
    "checkpoint_every": 2,
}


def cut(name: str, bench: Bench, full: Mapping[str, Any]) -> Config:
    """A recipe at the scale of the bench.

    Args:
        name: The recipe.
        bench: Whose scale it is.
        full: What is changed of the recipe at scale full, in words of ``--set``.
    """
    config = recipe(name)
    # A path that is named is an error where there is nothing: no verdict rests on made-up data unawares.
    path = {} if bench.scale == "tiny" else {"data.path": f"data/{config.data.name}"}
    return override(config, {**bench.pick(IN_SECONDS, IN_MINUTES, full), **path})
