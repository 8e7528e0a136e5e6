"""Where a loss that is not finite began: the first layer that made NaN or Inf out of finite numbers."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from unsmooth.models.hooks import Hooks
from unsmooth.training.state import unwrapped
from unsmooth.training.step import Step

Agree = Callable[[str | None], str | None]


def find_origin(model: nn.Module, loss: Callable[[], Tensor], agree: Agree = lambda words: words) -> str | None:
    """Name the module in which the first number that is not finite came up, forward or backward; None where none did.

    Args:
        model: The model with the weights of the failing step.
        loss: Runs the failing step's forward pass.
        agree: Gives the words of the first process that has any, on each of them: no process may go on to the backward
            pass while another does not.

    >>> layer = nn.Linear(2, 2)
    >>> _ = nn.init.constant_(layer.weight, 3e38)
    >>> model = nn.Sequential(nn.Identity(), layer)
    >>> find_origin(model, lambda: model(torch.full((1, 2), 3e38)).sum())
    "the output of '1' (Linear)"
    """
    found: list[str] = []
    model.zero_grad(set_to_none=True)
    with _watched(model, found), _without_advice():
        value = loss()
        if not found and not _finite(value.detach()):
            found.append("the loss itself, from finite logits")
        if (words := agree(found[0] if found else None)) is not None:
            return words
        value.backward()  # type: ignore[no-untyped-call]
    bad = [name for name, one in model.named_parameters() if one.grad is not None and not _finite(one.grad)]
    model.zero_grad(set_to_none=True)
    # The last in the order of the model is the first in that of the backward pass.
    found += [f"the gradient of {bad[-1]!r}"] if bad else []
    return agree(found[0] if found else None)


def where_it_began(engine: Step, batches: Iterable[int]) -> str:
    """Run the micro-batches of a failing step again, with the weights that it had, and name the place.

    The same words on every process; all of them have to call this.
    """
    for value in engine.task.state().values():
        if value.is_floating_point():
            value.nan_to_num_(0.0, 0.0, 0.0)  # what the failing step left there for the next
    model = unwrapped(engine.model).train()
    for batch in batches:
        engine.task.begin(batch)
        number = torch.tensor(batch, device=engine.place.device)

        def loss(number: Tensor = number) -> Tensor:
            with engine.arithmetic():
                return engine.loss(model, number)

        if (words := find_origin(model, loss, engine.place.agree)) is not None:
            return words
    return "no layer that shows it when run again"


@contextmanager
def _watched(model: nn.Module, found: list[str]) -> Iterator[None]:
    with Hooks() as hook:
        for name, module in model.named_modules():
            # Only the innermost modules, and never the wrapper: what contains the culprit would be named as well.
            if not any(True for _ in module.children()):
                hook(module.register_forward_hook, _forward_hook(name, found))
                hook(module.register_full_backward_hook, _backward_hook(name, found))
        yield


@contextmanager
def _without_advice() -> Iterator[None]:
    """Torch warns that a hook sees no gradient of inputs which have none."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Full backward hook")
        yield


def _forward_hook(name: str, found: list[str]) -> Callable[..., None]:
    def look(module: nn.Module, given: Any, made: Any) -> None:
        if found or _finite(made):
            return
        # Between two modules there is arithmetic too, attention above all.
        where = "the output of" if _finite(given) else "what comes into"
        found.append(f"{where} {name!r} ({type(module).__name__})")

    return look


def _backward_hook(name: str, found: list[str]) -> Callable[..., None]:
    def look(module: nn.Module, handed_on: Any, given: Any) -> None:
        if not found and _finite(given) and not _finite(handed_on):
            found.append(f"the gradient that {name!r} ({type(module).__name__}) hands back")

    return look


def _finite(value: Any) -> bool:
    if isinstance(value, DTensor):
        value = value.to_local()
    if isinstance(value, Tensor):
        return not value.is_floating_point() or bool(torch.isfinite(value).all())
    if isinstance(value, tuple | list):
        return all(_finite(item) for item in value)
    return True
