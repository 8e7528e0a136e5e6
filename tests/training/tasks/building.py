"""Small tasks on made-up data, for tests; a second process is only named, never started."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy
import torch

from unsmooth.networks.config import DecoderConfig, EncoderConfig
from unsmooth.training.config import Config, DataConfig, Engine
from unsmooth.training.place import Place
from unsmooth.training.task import TASKS, Task

SMALL: dict[str, Any] = {"depth": 2, "dim": 16, "heads": 2, "hidden": 32}
FLOAT64 = Engine(device="cpu", precision="float64")


def here(rank: int = 0, ranks: int = 1) -> Place:
    return Place(torch.device("cpu"), rank, ranks)


def a_text(folder: Path, size: int = 4000) -> Path:
    """Letters in which each says something about the next."""
    steps = numpy.random.default_rng(3).integers(0, 3, size)
    path = folder / "letters.txt"
    path.write_bytes(bytes(97 + int(one) for one in numpy.cumsum(steps) % 20))
    return path


def masked_config(text: Path, **changes: Any) -> Config:
    config = Config(
        recipe="test",
        task="masked",
        network=EncoderConfig(vocabulary=261, length=16, dropout=0.1, drop_path=0.1, **SMALL),
        data=DataConfig(name="letters", path=str(text)),
        steps=3,
        batch=8,
        engine=FLOAT64,
    )
    return dataclasses.replace(config, **changes)


def language_config(text: Path, *, network: dict[str, Any] | None = None, **changes: Any) -> Config:
    settings = {"vocabulary": 256, "length": 8, "memory": 8, "norm": "post", "dropout": 0.1, **SMALL}
    config = Config(
        recipe="test",
        task="language",
        network=DecoderConfig(**(settings | (network or {}))),
        data=DataConfig(name="letters", path=str(text)),
        steps=3,
        batch=8,
        engine=FLOAT64,
    )
    return dataclasses.replace(config, **changes)


def built(config: Config, place: Place | None = None, share: int | None = None) -> Task:
    place = place or here()
    return TASKS[config.task](config, place, share or config.batch // place.ranks)


def network_of(task: Task) -> Any:
    return task.network().to(task.dtype).train()


def loss_at(task: Task, model: Any, batch: int) -> torch.Tensor:
    task.begin(batch)
    return task.loss(model, torch.tensor(batch))
