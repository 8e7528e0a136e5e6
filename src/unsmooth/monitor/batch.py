"""The fixed batch that a monitor looks at: given, or the first that the model is called with in training."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from torch import Tensor, nn

from unsmooth.errors import expected
from unsmooth.models.hooks import Hooks
from unsmooth.scanning.data import RawBatch, cut_batch, sequences_of

# Of the first batch this share is looked at, so that a look costs a small part of a step.
_SHARE = 4
_FEWEST, _MOST = 2, 8


class FirstBatch:
    """Keeps what a model is first called with in training by this thread, by a hook that is gone afterwards.

    A model compiled in place runs its hooks inside of what is compiled, or not at all: there the call itself is seen.

    Args:
        model: As it is called: compiled or wrapped, if so.
    """

    def __init__(self, model: nn.Module) -> None:
        self.seen: RawBatch | None = None
        self.problem: Exception | None = None
        self._model = model
        self._hooks = Hooks()
        self._hooks(model.register_forward_pre_hook, self._see, with_kwargs=True)
        self._call: _SeenCall | None = None
        self.look_at_call()

    def look_at_call(self) -> None:
        """See the call itself, where the model is compiled in place by now."""
        compiled = self._model._compiled_call_impl
        if compiled is not None and self._call is None:
            self._call = _SeenCall(compiled, partial(self._see, self._model))
            self._model._compiled_call_impl = self._call

    def _see(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._model.training and self.seen is None:
            try:
                self.seen = kept(named(self._model, args, kwargs))
            except Exception as error:  # a training run does not stop for this
                self.problem = error
            self.close()

    def close(self) -> None:
        """Take the hook away, if it is still there, and give the call back, if it is still ours."""
        self._hooks.close()
        if self._call is not None and self._model._compiled_call_impl is self._call:
            self._model._compiled_call_impl = self._call.compiled


class _SeenCall:
    """Stands where a model compiled in place has its compiled call."""

    def __init__(self, compiled: Any, see: Callable[[tuple[Any, ...], dict[str, Any]], None]) -> None:
        self.compiled = compiled
        self.see = see
        self.thread = threading.get_ident()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() == self.thread:
            self.see(args, kwargs)
        return self.compiled(*args, **kwargs)


def named(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> RawBatch:
    """A call as one tensor, or as a dict by the names of the arguments."""
    if len(args) == 1 and not kwargs and isinstance(args[0], Tensor):
        return args[0]
    while hasattr(module, "_orig_mod"):  # torch.compile's wrapper takes anything
        module = module._orig_mod  # type: ignore[assignment]
    parameters = inspect.signature(module.forward).parameters.values()
    starred = {one.name: one.kind for one in parameters if one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD)}
    bound = inspect.signature(module.forward).bind(*args, **kwargs).arguments
    for name, kind in starred.items():
        more = bound.pop(name, None)
        if more and kind is inspect.Parameter.VAR_POSITIONAL:
            raise expected("a model whose inputs have names", f"{len(more)} without", "Monitor(model, probe=batch)")
        bound |= more or {}
    return bound


def kept(batch: RawBatch) -> RawBatch:
    """The tensors of a batch, copied: a loader may write into the same memory again."""
    if isinstance(batch, Tensor):
        return batch.detach().clone()
    return {
        key: value.detach().clone() if isinstance(value, Tensor) else value
        for key, value in batch.items()
        if value is not None
    }


def shortened(batch: RawBatch, sequences: int | None) -> RawBatch:
    """The first sequences of a batch: so many, or by default a quarter, from 2 to 8; all where it cannot be cut.

    >>> import torch
    >>> shortened(torch.zeros(32, 5, 8), None).shape
    torch.Size([8, 5, 8])
    >>> shortened({"input_ids": torch.zeros(3, 9)}, None)["input_ids"].shape
    torch.Size([2, 9])
    """
    size = len(batch) if isinstance(batch, Tensor) else sequences_of(batch)
    if size is None:
        return batch
    count = sequences or min(max(size // _SHARE, _FEWEST), _MOST)
    return batch[:count] if isinstance(batch, Tensor) else cut_batch(batch, size, 0, count)


def fitting(batch: RawBatch, inner: nn.Module, outer: nn.Module) -> RawBatch:
    """What of a call of the outer model its inner part takes: heads have arguments of their own."""
    if isinstance(batch, Tensor):
        return batch
    shifted = getattr(outer, "prepare_decoder_input_ids_from_labels", None)
    if callable(shifted) and "labels" in batch and "decoder_input_ids" not in batch:
        # Labels are no input of a look, and the model would have made its decoder's tokens of them.
        batch = {**batch, "decoder_input_ids": shifted(labels=batch["labels"])}
    if inner is outer:
        return batch
    known = inspect.signature(inner.forward).parameters
    return {key: value for key, value in batch.items() if key in known}
