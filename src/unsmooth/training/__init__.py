"""Training with the token measurements built in: recipes, data, engine, run folders."""

from unsmooth.training.config import Config
from unsmooth.training.folder import RunFolder
from unsmooth.training.journal import Progress
from unsmooth.training.plain import override
from unsmooth.training.recipes import RECIPES, recipe
from unsmooth.training.run import LossNotFiniteError
from unsmooth.training.task import TASKS, Task
from unsmooth.training.verbs import resume, train, train_all

__all__ = [
    "RECIPES",
    "TASKS",
    "Config",
    "LossNotFiniteError",
    "Progress",
    "RunFolder",
    "Task",
    "override",
    "recipe",
    "resume",
    "train",
    "train_all",
]
