r"""For each token the mean of all tokens, those that it is like counting more: ContraNorm's average of whole sequences.

.. math:: y_i = \sum_j S_{ij} x_j, \qquad S = \mathrm{softmax}(\hat x \hat x^\top / T), \quad \hat x_i = x_i / \|x_i\|

Torch's fused attention does the same with lengths divided away before and rounded copies of queries, keys and values,
some thirty kernels forward and backward. Where products are in half precision on a GPU, and sequences are short, one
kernel runs forward and one backward instead. As no cosine is above 1, no largest logit need be looked for; as queries
are keys, one program has all that a sequence's gradient is made of. They are operators of torch's own kind, which
torch.compile leaves as they are and a CUDA graph can hold. Forward derivatives and second ones they have none, as
torch's fused attention: under ``sdpa_kernel(SDPBackend.MATH)`` plain operations run.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from unsmooth.remedies.mixed_heads import may_fuse

_HALVES = (torch.bfloat16, torch.float16)
# Maps of whole sequences are in a program's registers.
_MOST_TOKENS = 128
# The mean, the tokens at length one in half precision, and their lengths.
Kept = tuple[Tensor, Tensor, Tensor]


def has_kernels(x_BND: Tensor) -> bool:
    """Whether `mean_by_likeness` is for these tokens."""
    return x_BND.is_cuda and may_fuse() and x_BND.shape[1] <= _MOST_TOKENS and _half(x_BND) in _HALVES


def _half(x_BND: Tensor) -> torch.dtype:
    """What products of these tokens are rounded to."""
    if x_BND.dtype == torch.float32 and torch.is_autocast_enabled("cuda"):
        return torch.get_autocast_dtype("cuda")
    return x_BND.dtype


def mean_by_likeness(x_BND: Tensor, temperature: float) -> Tensor:
    """S·X by the kernels, where `has_kernels` says so; in half precision, as products are."""
    out: Tensor = _average(x_BND, temperature, _half(x_BND))[0]
    return out


@torch.library.custom_op(
    "unsmooth::likeness",
    mutates_args=(),
    schema="(Tensor x, float temperature, ScalarType half) -> (Tensor, Tensor, Tensor)",
)
def _average(x: Tensor, temperature: float, half: torch.dtype) -> Kept:
    from unsmooth.remedies.likeness_kernels import forward

    return forward(x, temperature, half)


@torch.library.custom_op(
    "unsmooth::likeness_backward",
    mutates_args=(),
    schema="(Tensor grad, Tensor units, Tensor lengths, float temperature, ScalarType dtype) -> Tensor",
)
def _average_backward(grad: Tensor, *given: Any) -> Tensor:
    from unsmooth.remedies.likeness_kernels import backward

    return backward(grad, *given)


@_average.register_fake
def _average_shapes(x: Tensor, temperature: float, half: torch.dtype) -> Kept:
    mean, units = (x.new_empty(x.shape, dtype=half) for _ in range(2))
    return mean, units, x.new_empty(x.shape[:2], dtype=torch.float32)


@_average_backward.register_fake
def _average_backward_shapes(grad: Tensor, *given: Any) -> Tensor:
    return grad.new_empty(grad.shape, dtype=given[-1])


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Kept) -> None:
    x, ctx.temperature, _ = inputs
    ctx.dtype = x.dtype
    ctx.save_for_backward(*output[1:])


def _backward(ctx: Any, grad: Tensor, *of_others: Tensor) -> tuple[Tensor, None, None]:
    units, lengths = ctx.saved_tensors
    of_x: Tensor = _average_backward(grad.to(units.dtype), units, lengths, ctx.temperature, ctx.dtype)
    return of_x, None, None


_average.register_autograd(_backward, setup_context=_keep)
