"""A digest of a model's weights: two scans are of the same model when their digests agree."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from unsmooth.errors import expected
from unsmooth.models.origin import unwrapped
from unsmooth.models.remedied import edits_of, written_out
from unsmooth.models.spread import is_sharded
from unsmooth.models.stored import at_hand, gathered, parts

HASHED = "SHA-256 over name, dtype, shape and SHA-256 of each tensor, in the order of their names, and over remedies"
"""What a weight hash is of; manifests say it beside the hash, as those of other versions may be of something else."""
_SMALL = 1 << 16  # bytes; hashed at once, which takes less time than a thread needs to begin
_CHUNK = 1 << 26  # bytes that are brought from another device at a time
_THREADS = 8  # at most; each may hold a chunk


def weight_hash(model: nn.Module) -> str:
    """SHA-256 over name, dtype, shape and SHA-256 of every tensor of the state dict, in the order of their names.

    It does not depend on the device, on how tensors lie in memory, on shards of FSDP2, on where accelerate keeps them,
    or on a DDP or torch.compile wrapper. Remedies count: their parameters, and the options that are no parameters. Of a
    model that FSDP2 has sharded, all processes must ask for it together.

    >>> model = nn.Linear(2, 1)
    >>> weight_hash(model) == weight_hash(model)
    True
    >>> len(weight_hash(model))
    64
    """
    with hashing(model) as result:
        return result()


@contextmanager
def hashing(model: nn.Module) -> Iterator[Callable[[], str]]:
    """The weight hash in the making, by threads beside what is done with the model; yields what waits for it.

    Nobody may change a weight until it is there. What a forward pass in evaluation mode may change are buffers of a few
    bytes, which are hashed before it begins. Weights that are not at hand are hashed one by one at the end: sharded by
    FSDP2, which all processes gather together, or offloaded by accelerate, for which there may be no room.
    """
    inner = unwrapped(model)
    pool = ThreadPoolExecutor(min(_THREADS, torch.get_num_threads()), thread_name_prefix="weight hash")
    # Tied weights share their memory; the tensor is held so that no other one takes its place there.
    known: dict[object, tuple[Tensor, bytes | Future[bytes]]] = {}

    def begun(tensor: Tensor) -> bytes | Future[bytes]:
        memory = (tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        if memory not in known:
            small = tensor.nbytes <= _SMALL
            known[memory] = tensor, _digest(tensor) if small else pool.submit(_digest, tensor)
        return known[memory][1]

    try:
        if is_sharded(inner) or any(isinstance(one, Tensor) and one.is_meta for one in inner.state_dict().values()):
            yield lambda: _combined(inner, ((_head(*one), _digest(one[1])) for one in _tensors(inner)))
        else:
            tensors = [(_head(name, tensor), begun(tensor)) for name, tensor in _tensors(inner)]
            yield lambda: _combined(inner, tensors)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Every tensor of the state by name, of a quantised one all that it is made of."""
    for name, value in sorted(model.state_dict().items()):
        if isinstance(value, Tensor):
            if value.is_meta:  # accelerate keeps it somewhere else meanwhile
                path, _, leaf = name.rpartition(".")
                value = at_hand(model.get_submodule(path), leaf)
            value = gathered(value)
        for part, tensor in parts(name, value):
            if tensor.is_meta:
                raise expected("a model with weights", f"{part} on the meta device", "loading them first")
            yield part, tensor.detach()


def _combined(model: nn.Module, tensors: Iterable[tuple[str, bytes | Future[bytes]]]) -> str:
    digest = hashlib.sha256()
    for head, content in tensors:
        digest.update(head.encode())
        digest.update(content if isinstance(content, bytes) else content.result())
    for path, module in sorted(model.named_modules()):
        for edit in edits_of(module):
            digest.update(f"{path}|{written_out(edit)}|".encode())
    return digest.hexdigest()


def add_tensor(digest: hashlib._Hash, name: str, tensor: Tensor) -> None:
    """Feed a tensor to `digest`: its name, dtype, shape and bytes in the order of its indices."""
    digest.update(_head(name, tensor).encode())
    _add_bytes(digest, tensor)


def _head(name: str, tensor: Tensor) -> str:
    return f"{name}|{tensor.dtype}|{tuple(tensor.shape)}|"


def _digest(tensor: Tensor) -> bytes:
    digest = hashlib.sha256()
    _add_bytes(digest, tensor)
    return digest.digest()


def _add_bytes(digest: hashlib._Hash, tensor: Tensor) -> None:
    flat = tensor.detach().contiguous().view(-1).view(torch.uint8)  # numpy has no bfloat16, but bytes are bytes
    for start in range(0, flat.numel(), _CHUNK):
        digest.update(flat[start : start + _CHUNK].cpu().numpy().data)
