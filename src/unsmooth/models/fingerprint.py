"""A digest of a model's weights: two scans are of the same model when their digests agree."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor, nn

from unsmooth.models.origin import unwrapped
from unsmooth.models.remedied import edits_of, written_out
from unsmooth.models.stored import at_hand, gathered, parts

_WORD = 8  # bytes
_STRIDE = 1021  # a prime: rows of a weight matrix that change places fall into other sums
_WORDS = 64  # in a sum
_CHUNK = _STRIDE * _WORDS * 256  # words that are summed at a time, about 130 MB


def weight_hash(model: nn.Module) -> str:
    """SHA-256 over names, dtypes, shapes and contents of the state dict, in the order of the names.

    It does not depend on the device, on how tensors lie in memory, on shards of FSDP2, on where accelerate keeps them,
    or on a DDP or torch.compile wrapper. Remedies count: their parameters, and the options that are no parameters. Of a
    model that FSDP2 has sharded, all processes must ask for it together. What is hashed of a large tensor is said at
    `add_tensor`.

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
    """Feed a tensor to `digest`: its name, dtype, shape and contents.

    A small tensor goes in byte by byte. Of a larger one, read as words of 64 bits, sums of 64 words that lie 1,021
    words apart go in, modulo 2⁶⁴: any one changed word changes a sum, and so do rows that change places. That is
    nothing to keep a forger out, and it is made where the tensor is, at the speed of its memory.
    """
    digest.update(f"{name}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
    flat = tensor.detach().reshape(-1).view(torch.uint8)  # numpy has no bfloat16, but bytes are bytes
    words = flat.numel() // _WORD
    rows = words // _STRIDE
    if rows < 2:
        digest.update(_bytes(flat))
        return
    summed = rows * _STRIDE
    if flat.data_ptr() % _WORD or flat.storage_offset() % _WORD:
        flat = flat.clone()  # words have to begin where words may begin
    as_words = flat[: summed * _WORD].view(torch.int64)
    for start in range(0, summed, _CHUNK):
        for sums in _sums(as_words[start : start + _CHUNK].view(-1, _STRIDE)):
            digest.update(_bytes(sums.view(torch.uint8)))
    digest.update(_bytes(flat[summed * _WORD :]))


def _sums(words_RS: Tensor) -> list[Tensor]:
    """Sums over whole groups of rows, and over the rows that are left."""
    whole = words_RS.shape[0] // _WORDS * _WORDS
    sums = [words_RS[:whole].view(-1, _WORDS, _STRIDE).sum(1).flatten()] if whole else []
    return sums + ([words_RS[whole:].sum(0)] if whole < words_RS.shape[0] else [])


def _bytes(flat: Tensor) -> memoryview:
    return flat.cpu().contiguous().numpy().data
