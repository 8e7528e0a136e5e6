"""The two GPU kernels of `weights_of_both`: one program has all four vectors.

Sums are in float32. Imported only where there is a GPU, since Triton comes with its torch.
"""

# Functions of Triton have no types.
# mypy: disable-error-code="untyped-decorator,no-untyped-def,assignment"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from unsmooth.remedies.triton_here import on_its_device


@triton.jit
def _pair(vectors, number, WIDTH: tl.constexpr, WIDE: tl.constexpr):
    """A query and its key, and the exponential of their product."""
    place = tl.arange(0, WIDE)
    query = tl.load(vectors + 2 * number * WIDTH + place, place < WIDTH, other=0.0).to(tl.float32)
    key = tl.load(vectors + (2 * number + 1) * WIDTH + place, place < WIDTH, other=0.0).to(tl.float32)
    return query, key, tl.exp(tl.sum(query * key, 0))


@triton.jit
def _forward_kernel(vectors, out, start, WIDTH: tl.constexpr, WIDE: tl.constexpr):
    plus = _pair(vectors, 0, WIDTH, WIDE)[2]
    minus = _pair(vectors, 1, WIDTH, WIDE)[2]
    tl.store(out, 1.0)
    tl.store(out + 1, minus - plus - start)


@triton.jit
def _backward_kernel(grad, vectors, of_vectors, WIDTH: tl.constexpr, WIDE: tl.constexpr):
    place = tl.arange(0, WIDE)
    for number in tl.static_range(2):
        query, key, size = _pair(vectors, number, WIDTH, WIDE)
        of_size = tl.load(grad + 1) * (size if number == 1 else -size)
        to = of_vectors + 2 * number * WIDTH + place
        tl.store(to, (of_size * key).to(of_vectors.dtype.element_ty), place < WIDTH)
        tl.store(to + WIDTH, (of_size * query).to(of_vectors.dtype.element_ty), place < WIDTH)


@on_its_device
def forward(vectors_4E: Tensor, start: float) -> Tensor:
    """What `weights_of_both` says."""
    vectors, out = vectors_4E.contiguous(), vectors_4E.new_empty(1, 1, 2, dtype=torch.float32)
    _forward_kernel[(1,)](vectors, out, start, **_sizes(vectors))
    return out


@on_its_device
def backward(grad: Tensor, vectors_4E: Tensor) -> Tensor:
    """The gradient of the vectors."""
    vectors = vectors_4E.contiguous()
    of_vectors = torch.empty_like(vectors)
    _backward_kernel[(1,)](grad.contiguous(), vectors, of_vectors, **_sizes(vectors))
    return of_vectors


def _sizes(vectors_4E: Tensor) -> dict[str, int]:
    width = vectors_4E.shape[1]
    return {"WIDTH": width, "WIDE": triton.next_power_of_2(width), "num_warps": 1}
