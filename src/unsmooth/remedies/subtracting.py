r"""The weights of the two maps of differential attention, 1 and −λ, from four learned vectors.

.. math:: \lambda = e^{\lambda_{q1} \cdot \lambda_{k1}} - e^{\lambda_{q2} \cdot \lambda_{k2}} + \lambda_{\mathrm{init}}

Two numbers of 128: with plain operations sixteen kernels of a GPU forward and backward, each of which takes longer to
begin than to run. Where `mixed_heads` has kernels they are two; torch.compile fuses the plain operations by itself.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F  # noqa: N812 - as everywhere

from unsmooth.remedies.mixed_heads import may_fuse


def share_of_second(vectors_4E: Tensor, start: float) -> Tensor:
    """λ; q1, k1, q2 and k2 are the rows of `vectors_4E`.

    >>> round(share_of_second(torch.tensor([[1.0], [1.0], [0.0], [1.0]]), 0.5).item(), 4)  # e − 1 + 0.5
    2.2183
    """
    exact = vectors_4E.to(torch.promote_types(vectors_4E.dtype, torch.float32))
    queries_2E, keys_2E = torch.unflatten(exact, 0, (2, 2)).unbind(dim=1)
    plus, minus = (queries_2E * keys_2E).sum(dim=-1).exp().unbind()
    share: Tensor = plus - minus + start
    return share


def weights_of_both(vectors_4E: Tensor, start: float) -> Tensor:
    """1 and −λ, (1, 1, 2) in float32.

    >>> weights_of_both(torch.zeros(4, 3), 0.25)
    tensor([[[ 1.0000, -0.2500]]])
    """
    known = (torch.float32, torch.bfloat16, torch.float16)
    if not torch.compiler.is_dynamo_compiling() and may_fuse() and vectors_4E.is_cuda and vectors_4E.dtype in known:
        out: Tensor = _Weights.apply(vectors_4E, start)  # type: ignore[no-untyped-call]
        return out
    return F.pad(-share_of_second(vectors_4E, start).float().view(1, 1, 1), (1, 0), value=1.0)


class _Weights(torch.autograd.Function):
    """By the kernels."""

    @staticmethod
    def forward(vectors_4E: Tensor, start: float) -> Tensor:
        from unsmooth.remedies.subtracting_kernels import forward

        return forward(vectors_4E, start)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        from unsmooth.remedies.subtracting_kernels import backward

        return backward(grad, *ctx.saved_tensors), None
