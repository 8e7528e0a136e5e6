"""Whether the kernels of remedies can be compiled here, and on which GPU they are launched."""

from __future__ import annotations

import functools
import importlib.metadata
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

import torch
from torch import Tensor

P = ParamSpec("P")
T = TypeVar("T")


def _has_triton() -> bool:
    """Of NVIDIA's kind, and of a version that the kernels were tried with or a later one."""
    try:
        major, minor = importlib.metadata.version("triton").split(".")[:2]
    except importlib.metadata.PackageNotFoundError:
        return False
    return torch.version.hip is None and (int(major), int(minor)) >= (3, 5)


HAS_TRITON = _has_triton()


def on_its_device(launch: Callable[Concatenate[Tensor, P], T]) -> Callable[Concatenate[Tensor, P], T]:
    """Launch on the GPU of the first tensor: Triton takes the current one, which may be another in a model over many.

    >>> on_its_device(lambda x, factor: factor * x)(torch.ones(1), 2.0)  # a tensor of no GPU changes nothing
    tensor([2.])
    """

    @functools.wraps(launch)
    def launched(first: Tensor, /, *rest: P.args, **named: P.kwargs) -> T:
        with torch.cuda.device_of(first):  # type: ignore[no-untyped-call]
            return launch(first, *rest, **named)

    return launched
