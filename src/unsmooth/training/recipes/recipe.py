"""What a recipe is: a function from a size to the settings of a run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, get_args

from unsmooth.errors import unknown_name
from unsmooth.registry import Registry
from unsmooth.training.config import Config

Size = Literal["tiny", "base"]
"""base: as published. tiny: the same, small enough for a minute on two CPU cores."""

RECIPES = Registry[Callable[[Size], Config]]("recipe")


def recipe(name: str, size: Size = "base") -> Config:
    """The settings that go by `name`.

    >>> recipe("vit_cifar100").network.depth, recipe("vit_cifar100", "tiny").network.depth
    (12, 4)
    """
    if size not in get_args(Size):
        raise unknown_name("size", size, get_args(Size))
    return RECIPES[name](size)
