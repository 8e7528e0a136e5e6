r"""Taking the token mean out of a whole sequence in two kernels forward and two backward.

Written with plain operations, autograd would run about ten small kernels per layer, which is what the remedy costs in a
small model. But :math:`(I - \tau\Pi)` is symmetric: its backward pass is itself.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class _WithoutMean(torch.autograd.Function):
    @staticmethod
    def forward(x_BNX: Tensor, tau: float) -> Tensor:
        mean = x_BNX.mean(dim=1, keepdim=True, dtype=torch.promote_types(x_BNX.dtype, torch.float32))
        # The mean is never rounded to a lower precision than it was summed in; only the difference is.
        return torch.sub(x_BNX, mean, alpha=tau, out=torch.empty_like(x_BNX))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, float], output: Tensor) -> None:
        ctx.tau = inputs[1]

    @staticmethod
    def backward(ctx: Any, grad_BNX: Tensor) -> tuple[Tensor, None]:
        return without_mean(grad_BNX, ctx.tau), None

    @staticmethod
    def jvp(ctx: Any, tangent_BNX: Tensor, _: None) -> Tensor:
        return without_mean(tangent_BNX, ctx.tau)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int, None], x: Tensor, tau: float) -> tuple[Tensor, int]:
        x = x.movedim(in_dims[0], 0)
        return without_mean(x.flatten(0, 1), tau).view(x.shape), 0


def without_mean(x_BNX: Tensor, tau: float) -> Tensor:
    r""":math:`(I - \tau\Pi)X` of every sequence in a batch (batch, tokens, ...), all tokens being real.

    >>> without_mean(torch.tensor([[[1.0], [3.0]]]), 1.0).flatten().tolist()
    [-1.0, 1.0]
    """
    if torch.compiler.is_compiling():  # which fuses plain operations by itself
        mean = x_BNX.mean(dim=1, keepdim=True, dtype=torch.promote_types(x_BNX.dtype, torch.float32))
        return torch.sub(x_BNX, mean, alpha=tau).to(x_BNX.dtype)
    out: Tensor = _WithoutMean.apply(x_BNX, tau)  # type: ignore[no-untyped-call]
    return out
