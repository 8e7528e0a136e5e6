"""A hash of a model's weights: two scans are of the same model when their hashes agree."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor, nn

from unsmooth.models.origin import unwrapped
from unsmooth.models.remedied import edits_of, written_out
from unsmooth.models.stored import at_hand, gathered, parts

_CHUNK = 1 << 24  # elements moved to the CPU at a time, so that no copy of a large tensor is made


def weight_hash(model: nn.Module) -> str:
    """SHA-256 over names, dtypes, shapes and bytes of the state dict, in the order of the names.

    It does not depend on the device, on how tensors lie in memory, on shards of FSDP2, on where accelerate keeps them,
    or on a DDP or torch.compile wrapper. Remedies count: their parameters, and the options that are no parameters. Of a
    model that FSDP2 has sharded, all processes must ask for it together.

    >>> model = nn.Linear(2, 1)
    >>> weight_hash(model) == weight_hash(model)
    True
    >>> len(weight_hash(model))
    64
    """
    digest = hashlib.sha256()
    inner = unwrapped(model)
    for name, value in sorted(inner.state_dict().items()):
        # Modules may keep extra state that is not a tensor; it is no weight.
        if isinstance(value, Tensor):
            for part, tensor in parts(name, gathered(_at_hand(inner, name, value))):
                add_tensor(digest, part, tensor)
    for path, module in sorted(inner.named_modules()):
        for edit in edits_of(module):
            digest.update(f"{path}|{written_out(edit)}|".encode())
    return digest.hexdigest()


def _at_hand(model: nn.Module, name: str, value: Tensor) -> Tensor:
    path, _, leaf = name.rpartition(".")
    return at_hand(model.get_submodule(path), leaf) if value.is_meta else value


def add_tensor(digest: hashlib._Hash, name: str, tensor: Tensor) -> None:
    """Feed a tensor to `digest`: its name, dtype, shape and bytes."""
    digest.update(f"{name}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
    flat = tensor.detach().reshape(-1)
    for start in range(0, flat.numel(), _CHUNK):
        chunk = flat[start : start + _CHUNK].cpu().contiguous()
        # numpy has no bfloat16, but bytes are bytes.
        digest.update(chunk.view(torch.uint8).numpy().data)
