from __future__ import annotations

import hashlib

import numpy
import pytest
import torch
from torch import Tensor, nn

from unsmooth.models import weight_hash
from unsmooth.models.fingerprint import add_tensor


def digest(tensor: Tensor) -> str:
    made = hashlib.sha256()
    add_tensor(made, "name", tensor)
    return made.hexdigest()


def written_out(raw: bytes, head: str) -> str:
    """The same by numpy: sums of 64 words that lie 1,021 apart, the rows that are left, the bytes that are left."""
    made = hashlib.sha256(head.encode())
    words = numpy.frombuffer(raw[: len(raw) // 8 * 8], dtype=numpy.int64)
    rows = len(words) // 1021
    if rows < 2:
        made.update(raw)
        return made.hexdigest()
    table = words[: rows * 1021].reshape(rows, 1021)
    for start in range(0, rows, 64):
        made.update(numpy.add.reduce(table[start : start + 64], axis=0, dtype=numpy.int64).tobytes())
    made.update(raw[rows * 1021 * 8 :])
    return made.hexdigest()


@pytest.mark.parametrize("size", [0, 1, 4000, 2 * 1021 * 2, 130 * 1021 * 2 + 5])
def test_digest_is_the_one_written_out(size: int) -> None:
    tensor = torch.randn(size, generator=torch.Generator().manual_seed(0))
    assert digest(tensor) == written_out(tensor.numpy().tobytes(), f"name|torch.float32|({size},)|")


def test_large_tensors_are_summed_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = torch.randn(300 * 1021 * 2)
    whole = digest(tensor)
    monkeypatch.setattr("unsmooth.models.fingerprint._CHUNK", 1021 * 64)
    assert digest(tensor) == whole


def test_every_change_shows() -> None:
    plain = torch.randn(700, 384, generator=torch.Generator().manual_seed(0))
    swapped, negated, moved = plain.clone(), plain.clone(), plain.clone()
    swapped[[3, 4]] = plain[[4, 3]]
    negated[699, 383] *= -1
    moved[0, :2] = plain[0, [1, 0]]
    different = (plain, swapped, negated, moved, plain.T, plain.flatten(), plain.view(torch.int32))
    assert len({digest(one) for one in different}) == len(different)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.int8, torch.bool])
def test_how_a_tensor_lies_in_memory_does_not_show(dtype: torch.dtype) -> None:
    plain = torch.randn(90, 1021, generator=torch.Generator().manual_seed(0)).to(dtype)
    beside = torch.cat([plain.new_zeros(1), plain.flatten()])[1:].view_as(plain)  # begins inside of a word
    assert digest(plain) == digest(beside) == digest(plain.T.contiguous().T)


def test_names_and_shapes_count() -> None:
    one, other = nn.Sequential(nn.Linear(2, 1)), nn.ModuleDict({"a": nn.Linear(2, 1)})
    other["a"].load_state_dict(one[0].state_dict())
    assert weight_hash(one) != weight_hash(other)
    assert weight_hash(one) == weight_hash(torch.compile(one))  # type: ignore[arg-type]
