"""Value weights times a number, with a backward pass of few kernels where they are fused with queries and keys.

Left to autograd, the gradient of a slice is copied into a fresh tensor of zeros after it was scaled and laid out anew:
small kernels, in every layer, which is what the Gram form costs in a small model.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import is_batchedtensor

from unsmooth.remedies.spectral.slots import ValueSlots


class _ScaledRows(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(weight: Tensor, factor: Tensor, slots: ValueSlots) -> Tensor:
        return slots.rows_of(weight) * factor

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, ValueSlots], output: Tensor) -> None:
        weight, factor, ctx.slots = inputs
        ctx.shape, ctx.fused = weight.shape, output.numel() < weight.numel()
        ctx.save_for_backward(factor)
        ctx.save_for_forward(factor)

    @staticmethod
    def backward(ctx: Any, grad_GED: Tensor) -> tuple[Tensor, None, None]:
        (factor,) = ctx.saved_tensors
        # The rest of a fused weight is not in these rows.
        make = grad_GED.new_zeros if ctx.fused else grad_GED.new_empty
        out = make(ctx.shape)
        # Gradients of these gradients may be wanted, or many gradients at once: neither can be written by `out`.
        if torch.is_grad_enabled() or is_batchedtensor(grad_GED):
            ctx.slots.rows_of(out).copy_(grad_GED * factor)
        else:
            torch.mul(grad_GED, factor, out=ctx.slots.rows_of(out))
        return out, None, None

    @staticmethod
    def jvp(ctx: Any, weight_t: Tensor, *_: None) -> Tensor:
        out: Tensor = ctx.slots.rows_of(weight_t) * ctx.saved_tensors[0]
        return out


def scaled_rows(slots: ValueSlots, factor: Tensor) -> Tensor:
    """The value weights (G, E, D) times a number to which no gradient goes."""
    if torch.compiler.is_dynamo_compiling():  # which fuses plain operations by itself
        return slots.rows() * factor
    out: Tensor = _ScaledRows.apply(slots.parameter(), factor, slots)  # type: ignore[no-untyped-call]
    return out
