"""Looking at a model in the middle of its training must not change what is trained, by a bit."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor


@contextmanager
def any_kernel() -> Iterator[None]:
    """Nothing that is trained depends on a measurement: its last bit may, on a GPU, be another the next time."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(False)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


@contextmanager
def random_kept(device: torch.device) -> Iterator[None]:
    """Generators of torch, numpy and Python go on afterwards as if nobody had drawn from them."""
    numpy = sys.modules.get("numpy")
    python, legacy = random.getstate(), None if numpy is None else numpy.random.get_state()
    try:
        # Other devices than this one are not asked: starting a GPU that nobody uses costs seconds.
        with torch.random.fork_rng([] if device.type == "cpu" else [device], device_type=_kind(device)):
            yield
    finally:
        random.setstate(python)
        if numpy is not None:
            numpy.random.set_state(legacy)


def _kind(device: torch.device) -> str:
    return "cuda" if device.type == "cpu" else device.type


@contextmanager
def tensors_kept(model: nn.Module, *, weights: bool = True) -> Iterator[None]:
    """Buffers, and with `weights` parameters, hold afterwards what they held before, in the tensors they were.

    Batch norms count, rotary embeddings may grow, some remedies bring weights into their exact form for evaluation.
    """
    buffers = [(module, name, value) for module in model.modules() for name, value in module._buffers.items()]
    found = [value for _, _, value in buffers if value is not None] + (list(model.parameters()) if weights else [])
    kept = [(one, one.clone()) for one in map(local, found)]
    try:
        yield
    finally:
        for tensor, value in kept:
            # By `.data`: nothing has changed in the end, and a backward pass that is still to come need not refuse.
            tensor.data.copy_(value)
        for module, name, buffer in buffers:
            if module._buffers.get(name) is not buffer:
                module._buffers[name] = buffer


def local(tensor: Tensor) -> Tensor:
    """What this process holds of a tensor, without gradients."""
    if not isinstance(tensor, DTensor):
        return tensor.detach()
    with torch.no_grad():
        found: Tensor = tensor.to_local()
    return found
