"""Where a loss that is not finite began: the first layer that made NaN or Inf out of finite numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn


def find_origin(model: nn.Module, loss: Callable[[], Tensor]) -> str:
    """Name the module in which the first number that is not finite came up, forward or backward.

    Args:
        model: The model with the weights of the failing step.
        loss: Runs the failing step's forward pass.

    >>> layer = nn.Linear(2, 2)
    >>> _ = nn.init.constant_(layer.weight, 3e38)
    >>> find_origin(nn.Sequential(nn.Identity(), layer), lambda: layer(torch.full((1, 2), 3e38)).sum())
    "the output of '1' (Linear)"
    """
    found: list[str] = []
    with _watched(model, found):
        value = loss()
        if found:
            return found[0]
        if not torch.isfinite(value.detach()).all():
            return "the loss itself, from finite logits"
        model.zero_grad(set_to_none=True)
        value.backward()  # type: ignore[no-untyped-call]
    if found:
        return found[0]
    bad = [name for name, one in model.named_parameters() if one.grad is not None and not _finite(one.grad)]
    model.zero_grad(set_to_none=True)
    return f"the gradient of {bad[-1]!r}" if bad else "no layer that shows it when run again"


@contextmanager
def _watched(model: nn.Module, found: list[str]) -> Iterator[None]:
    handles = []
    for name, module in model.named_modules():
        # Only the innermost modules, and never the wrapper: what contains the culprit would be named as well.
        if any(True for _ in module.children()):
            continue
        handles.append(module.register_forward_hook(_forward_hook(name, found)))
        handles.append(module.register_full_backward_hook(_backward_hook(name, found)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _forward_hook(name: str, found: list[str]) -> Callable[..., None]:
    def look(module: nn.Module, given: Any, made: Any) -> None:
        if not found and not _finite(made):
            found.append(f"the output of {name!r} ({type(module).__name__})")

    return look


def _backward_hook(name: str, found: list[str]) -> Callable[..., None]:
    def look(module: nn.Module, handed_on: Any, given: Any) -> None:
        if not found and _finite(given) and not _finite(handed_on):
            found.append(f"the gradient that {name!r} ({type(module).__name__}) hands back")

    return look


def _finite(value: Any) -> bool:
    if isinstance(value, Tensor):
        return not value.is_floating_point() or bool(torch.isfinite(value).all())
    if isinstance(value, tuple | list):
        return all(_finite(item) for item in value)
    return True
