"""Training with the token measurements built in: recipes, data, engine, run folders.

Names are imported when they are first used: whoever only gets data does not wait for the engine.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unsmooth.training.config import Config
    from unsmooth.training.folder import RunFolder
    from unsmooth.training.journal import Progress
    from unsmooth.training.plain import override
    from unsmooth.training.recipes.recipe import RECIPES, recipe
    from unsmooth.training.run import LossNotFiniteError
    from unsmooth.training.task import Task
    from unsmooth.training.tasks import TASKS
    from unsmooth.training.trained_run import TrainedRun, find_runs, read_run
    from unsmooth.training.verbs import carry_on, resume, train, train_all

_HOME = {
    "RECIPES": "recipes",
    "TASKS": "tasks",
    "Config": "config",
    "LossNotFiniteError": "run",
    "Progress": "journal",
    "RunFolder": "folder",
    "Task": "task",
    "TrainedRun": "trained_run",
    "carry_on": "verbs",
    "find_runs": "trained_run",
    "override": "plain",
    "read_run": "trained_run",
    "recipe": "recipes",
    "resume": "verbs",
    "train": "verbs",
    "train_all": "verbs",
}

__all__ = [
    "RECIPES",
    "TASKS",
    "Config",
    "LossNotFiniteError",
    "Progress",
    "RunFolder",
    "Task",
    "TrainedRun",
    "carry_on",
    "find_runs",
    "override",
    "read_run",
    "recipe",
    "resume",
    "train",
    "train_all",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'unsmooth.training' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"unsmooth.training.{_HOME[name]}"), name)
    return value
