"""Models that are not all in one place: sharded over processes by FSDP2, or spread over devices by accelerate."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from unsmooth.errors import expected
from unsmooth.models.stored import hooks_of
from unsmooth.models.walk import modules_of


def is_sharded(model: nn.Module) -> bool:
    """Whether FSDP2 has sharded the model or a part of it: then all processes must run it together.

    >>> is_sharded(nn.Linear(2, 2))
    False
    """
    return any(True for _ in sharded_modules(model))


def is_spread(model: nn.Module) -> bool:
    """Whether accelerate has put parts of the model on different devices or out of the way.

    >>> is_spread(nn.Linear(2, 2))
    False
    """
    return is_offloaded(model) or len({parameter.device for parameter in model.parameters()}) > 1


def is_offloaded(model: nn.Module) -> bool:
    """Whether accelerate fetches parts of the model as they are called."""
    return any(getattr(hook, "offload", False) for module in model.modules() for hook in hooks_of(module))


def check_device(device: torch.device | str, hint: str = "device='cpu'") -> torch.device:
    """A device that this machine and this torch have.

    >>> check_device("cpu")
    device(type='cpu')
    >>> check_device("cuda:99")
    Traceback (most recent call last):
    unsmooth.errors.UnsmoothError: Expected a device of this machine but got 'cuda:99' (...). Try device='cpu'.
    """
    try:
        wanted = torch.device(device)
        torch.empty(0, device=wanted)
    except (RuntimeError, AssertionError, NotImplementedError, TypeError) as error:
        why = str(error).strip().splitlines()[0].rstrip(".")
        raise expected("a device of this machine", f"{str(device)!r} ({why})", hint) from None
    return wanted


def home_of(model: nn.Module) -> torch.device:
    """The device on which the model takes its input.

    >>> home_of(nn.Linear(2, 2))
    device(type='cpu')
    """
    for module in model.modules():
        for hook in hooks_of(module):
            if (device := getattr(hook, "execution_device", None)) is not None:
                # accelerate numbers its GPUs.
                return torch.device(device)
        for parameter in module.parameters(recurse=False):
            if not parameter.is_meta:
                return parameter.device
    return torch.device("cpu")


@contextmanager
def sharded_as_before(model: nn.Module) -> Iterator[None]:
    """Weights that a forward pass has gathered, and would leave so until the next step, are let go again."""
    sharded = [module for module in sharded_modules(model) if _holds_shards(module)]
    try:
        yield
    finally:
        for module in sharded:
            module.reshard()


def sharded_modules(model: nn.Module) -> Iterator[Any]:
    """The modules that FSDP2 has sharded: it gives each a class of its own making."""
    found = modules_of(model)
    # Of a few hundred modules there are a dozen classes.
    kinds = {kind for kind in {*map(type, found)} if any(base.__name__ == "FSDPModule" for base in kind.__mro__)}
    return (module for module in found if type(module) in kinds)


def _holds_shards(module: nn.Module) -> bool:
    first: Tensor | None = next(module.parameters(), None)
    return first is not None and hasattr(first, "full_tensor")
