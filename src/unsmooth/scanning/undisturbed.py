"""Looking at a model in the middle of its training must not change what is trained, by a bit."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from operator import is_not

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from unsmooth.models.hooks import ForAllThreads
from unsmooth.models.walk import modules_of

# Numbers of a tensor that is copied together with others.
_SMALL = 1 << 12


_STRICT = ForAllThreads[str, None](lambda _: None, lambda *_: torch.use_deterministic_algorithms(True))


def any_kernel() -> AbstractContextManager[None]:
    """Nothing that is trained depends on a measurement: its last bit may, on a GPU, be another the next time."""
    strict = torch.are_deterministic_algorithms_enabled
    return _STRICT(["kernels"], lambda _: strict(), lambda _: torch.use_deterministic_algorithms(False))


@contextmanager
def random_kept(device: torch.device) -> Iterator[None]:
    """Generators of torch, numpy and Python go on afterwards as if nobody had drawn from them.

    They are everybody's: what another thread draws meanwhile it draws once more.
    """
    numpy = sys.modules.get("numpy")
    python, legacy = random.getstate(), None if numpy is None else numpy.random.get_state()
    try:
        # Other devices than this one are not asked: starting a GPU that nobody uses costs seconds.
        kind = _kind(device)
        with torch.random.fork_rng([device] if kind == device.type else [], device_type=kind):
            yield
    finally:
        random.setstate(python)
        if numpy is not None:
            numpy.random.set_state(legacy)


def drawn(device: torch.device) -> tuple[bytes, int]:
    """How far torch's random numbers have come."""
    offset = torch.cuda.default_generators[device.index or 0].get_offset() if device.type == "cuda" else 0
    return torch.get_rng_state().numpy().tobytes(), offset


def _kind(device: torch.device) -> str:
    """What torch is to ask for generators: the CPU's come along anyway, and a tensor without content has none."""
    return "cuda" if device.type in ("cpu", "meta") else device.type


@contextmanager
def tensors_kept(model: nn.Module, *, weights: bool = True, small: SmallOnes | None = None) -> Iterator[None]:
    """Buffers, and with `weights` parameters, hold afterwards what they held before, in the tensors they were.

    Batch norms count, rotary embeddings may grow, some remedies bring weights into their exact form for evaluation.

    Args:
        model: Whose.
        weights: Parameters too.
        small: Knows the small ones from the last time, for who looks at the same model again and again.
    """
    buffers = [(module, name, value) for module in modules_of(model) for name, value in module._buffers.items()]
    found = [value for _, _, value in buffers if value is not None] + (list(model.parameters()) if weights else [])
    small = small or SmallOnes()
    rest = small.take(found)
    kept, kept_small = [(one, one.clone()) for one in map(local, rest)], small.copies()
    try:
        yield
    finally:
        for tensor, value in kept:
            # By `.data`: nothing has changed in the end, and a backward pass that is still to come need not refuse.
            tensor.data.copy_(value)
        small.put_back(kept_small)
        for module, name, buffer in buffers:
            if module._buffers.get(name) is not buffer:
                module._buffers[name] = buffer


class SmallOnes:
    """Small tensors by the hundred, copied as one of each type: a GPU would take a launch for each, there and back."""

    def __init__(self) -> None:
        self._known: list[Tensor] = []
        self._addresses: list[int] = []
        self._flat: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}

    def take(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Choose those that are small; returns the rest."""
        small, rest = list[Tensor](), list[Tensor]()
        for one in tensors:
            fits = type(one) in (Tensor, nn.Parameter) and one.numel() <= _SMALL and one.is_contiguous()
            (small if fits else rest).append(one)
        addresses = [one.data_ptr() for one in small]
        if addresses != self._addresses or any(map(is_not, small, self._known)):
            self._known, self._addresses, self._flat = small, addresses, {}
            for one in small:
                self._flat.setdefault((one.device, one.dtype), []).append(one.data.view(-1))
        return rest

    def copies(self) -> list[tuple[Tensor, ...]]:
        """What they hold now."""
        return [torch.split(torch.cat(alike), [one.numel() for one in alike]) for alike in self._flat.values()]

    def put_back(self, copies: Sequence[Sequence[Tensor]]) -> None:
        """Have them hold that again."""
        for alike, values in zip(self._flat.values(), copies, strict=True):
            torch._foreach_copy_(alike, list(values))


def local(tensor: Tensor) -> Tensor:
    """What this process holds of a tensor, without gradients."""
    if not isinstance(tensor, DTensor):
        return tensor.detach()
    with torch.no_grad():
        found: Tensor = tensor.to_local()
    return found
