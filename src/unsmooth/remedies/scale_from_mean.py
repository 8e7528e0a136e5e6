r"""Scaling tokens away from their mean in few kernels, where sequences are whole and without padding.

.. math:: y = x + s \odot m + t \odot (x - m)

Written with plain operations, autograd runs twenty to thirty small kernels per layer, many of them casts and copies of
one mean; and small kernels are what such a remedy costs in a small model. Here they are about half as many.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class _FromValues(torch.autograd.Function):
    """h + ω(h − m), m the mean of the values; also gives m and −ω for the backward pass."""

    generate_vmap_rule = True

    @staticmethod
    def forward(heads_BNKGE: Tensor, values_BNKE: Tensor, omega_KG1: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, weight = _mean_and_weight(values_BNKE, omega_KG1)
        return torch.lerp(heads_BNKGE, mean, weight), mean, weight

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
        _keep(ctx, inputs, output[1:])

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
        if grad is None:
            return None, None, None
        heads, values, omega, mean, weight = ctx.saved_tensors
        if torch.is_grad_enabled():  # gradients of these gradients are wanted, through all that they are made of
            mean, weight = _mean_and_weight(values, omega)
        of_values = of_omega = None
        if ctx.needs_input_grad[1]:
            through_mean = grad.mean(dim=1, keepdim=True) * weight
            through_mean = through_mean.sum(dim=3) if grad.shape[3] > 1 else through_mean.squeeze(3)
            # Not written out for every token: it is added to the gradient through attention, which is.
            of_values = through_mean.expand(values.shape)
        if ctx.needs_input_grad[2]:
            of_omega = (grad * (heads - mean)).sum(dim=(0, 1, 4), dtype=omega.dtype).unsqueeze(-1)
        return torch.addcmul(grad, grad, weight, value=-1), of_values, of_omega

    @staticmethod
    def jvp(ctx: Any, heads_t: Tensor | None, values_t: Tensor | None, omega_t: Tensor | None) -> Any:
        heads, _, _, mean, weight = ctx.saved_tensors
        out = torch.zeros_like(heads) if heads_t is None else heads_t - weight * heads_t
        if values_t is not None:
            out = out + weight * values_t.mean(dim=1, keepdim=True).unsqueeze(3)
        return (out if omega_t is None else out + omega_t.to(heads.dtype) * (heads - mean)), None, None


class _OfItself(torch.autograd.Function):
    """x + k(s⊙m + t⊙(x − m)), m the mean of x; also gives m, s − t and t in the dtype of x for the backward pass."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x_BND: Tensor, dc: Tensor, hc: Tensor, times: int) -> tuple[Tensor, ...]:
        mean, shift, gain = _mean_and_weights(x_BND, dc, hc)
        return _reweighted(x_BND, mean, shift, gain, times), mean, shift, gain

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.times = inputs[3]
        _keep(ctx, inputs[:3], output[1:])

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
        if grad is None:
            return None, None, None, None
        x, dc, hc, mean, shift, gain = ctx.saved_tensors
        if torch.is_grad_enabled():
            mean, shift, gain = _mean_and_weights(x, dc, hc)
        of_dc = of_hc = None
        through_mean = grad.mean(dim=1, keepdim=True)
        if ctx.needs_input_grad[1] or ctx.needs_input_grad[2]:
            of_dc = (through_mean * mean).sum(dim=(0, 1), dtype=dc.dtype) * (ctx.times * x.shape[1])
            of_hc = (grad * (x - mean)).sum(dim=(0, 1), dtype=hc.dtype)
            of_hc = of_hc if ctx.times == 1 else of_hc * ctx.times
        # The mean is symmetric, so the gradient goes through it as x does.
        return _reweighted(grad, through_mean, shift, gain, ctx.times), of_dc, of_hc, None

    @staticmethod
    def jvp(ctx: Any, x_t: Tensor | None, dc_t: Tensor | None, hc_t: Tensor | None, _: None) -> Any:
        x, _, _, mean, shift, gain = ctx.saved_tensors
        out = torch.zeros_like(x)
        if x_t is not None:
            out = _reweighted(x_t, x_t.mean(dim=1, keepdim=True), shift, gain, ctx.times)
        if dc_t is not None:
            out = out + ctx.times * dc_t.to(x.dtype) * mean
        if hc_t is not None:
            out = out + ctx.times * hc_t.to(x.dtype) * (x - mean)
        return out, None, None, None


def _keep(ctx: Any, inputs: tuple[Tensor, ...], made: tuple[Tensor, ...]) -> None:
    """For the backward pass: what came in, and what was made of it on the way and is no output for anybody else."""
    ctx.mark_non_differentiable(*made)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*inputs, *made)
    ctx.save_for_forward(*inputs, *made)


def scale_from_mean(heads_BNHE: Tensor, mean_BNKE: Tensor, omega_H: Tensor) -> Tensor:
    """Move what each head gives away from the mean of the values it reads: h + ω(h − m).

    Args:
        heads_BNHE: What the query heads give.
        mean_BNKE: The mean of each value head; heads k·G to k·G + G−1 read value head k. One token where all share it.
        omega_H: ω for each query head.

    Example:
        >>> heads, mean = torch.tensor([5.0, 3.0]).reshape(1, 1, 2, 1), torch.ones(1, 1, 1, 1)
        >>> scale_from_mean(heads, mean, torch.tensor([0.5, 1.0])).flatten().tolist()  # one value head for both
        [7.0, 5.0]
    """
    grouped, omega = _by_value_head(heads_BNHE, omega_H, mean_BNKE.shape[2])
    # As an interpolation ω itself is rounded to the dtype of the heads, not 1+ω, in which a small ω would vanish.
    return torch.lerp(grouped, mean_BNKE.unsqueeze(3), -omega.to(grouped.dtype)).flatten(2, 3)


def scale_from_values(heads_BNHE: Tensor, values_BNKE: Tensor, omega_H: Tensor) -> Tensor:
    """The same with the mean of whole sequences of values.

    Example:
        >>> heads, values = torch.full((1, 2, 1, 1), 5.0), torch.tensor([0.0, 2.0]).reshape(1, 2, 1, 1)
        >>> scale_from_values(heads, values, torch.tensor([0.5])).flatten().tolist()
        [7.0, 7.0]
    """
    if torch.compiler.is_compiling():  # which fuses plain operations by itself
        return scale_from_mean(heads_BNHE, values_BNKE.mean(dim=1, keepdim=True), omega_H)
    inputs = _by_value_head(heads_BNHE, omega_H, values_BNKE.shape[2])
    out: Tensor = _FromValues.apply(inputs[0], values_BNKE, inputs[1])[0]  # type: ignore[no-untyped-call]
    return out.flatten(2, 3)


def reweight(x_BND: Tensor, mean: Tensor, dc_D: Tensor, hc_D: Tensor, times: int = 1) -> Tensor:
    """Add `times` · (s⊙m + t⊙(x − m)) to x, in its dtype.

    Args:
        x_BND: Tokens.
        mean: Their mean m, broadcastable to them.
        dc_D: s for each channel.
        hc_D: t for each channel.
        times: How often the two terms are added.

    Example:
        >>> x, mean, half = torch.tensor([[[4.0], [2.0]]]), torch.tensor([[[3.0]]]), torch.tensor([0.5])
        >>> reweight(x, mean, torch.tensor([-1.0]), half).flatten().tolist()  # no mean left: 1.5·(4 − 3), 1.5·(2 − 3)
        [1.5, -1.5]
        >>> reweight(x, mean, torch.tensor([0.0]), half, times=2).flatten().tolist()  # 3 + 2·(4 − 3), 3 + 2·(2 − 3)
        [5.0, 1.0]
    """
    return _reweighted(x_BND, mean, (dc_D - hc_D).to(x_BND.dtype), hc_D.to(x_BND.dtype), times)


def reweight_whole(x_BND: Tensor, dc_D: Tensor, hc_D: Tensor, times: int = 1) -> Tensor:
    """The same with the mean of whole sequences.

    Example:
        >>> x = torch.tensor([[[4.0], [2.0]]])
        >>> reweight_whole(x, torch.tensor([-1.0]), torch.tensor([0.5])).flatten().tolist()
        [1.5, -1.5]
    """
    if torch.compiler.is_compiling():
        return reweight(x_BND, x_BND.mean(dim=1, keepdim=True), dc_D, hc_D, times)
    out: Tensor = _OfItself.apply(x_BND, dc_D, hc_D, times)[0]  # type: ignore[no-untyped-call]
    return out


def _by_value_head(heads_BNHE: Tensor, omega_H: Tensor, value_heads: int) -> tuple[Tensor, Tensor]:
    grouped = torch.unflatten(heads_BNHE, 2, (value_heads, -1))
    return grouped, omega_H.view(value_heads, -1, 1)


def _mean_and_weight(values_BNKE: Tensor, omega_KG1: Tensor) -> tuple[Tensor, Tensor]:
    return values_BNKE.mean(dim=1, keepdim=True).unsqueeze(3), -omega_KG1.to(values_BNKE.dtype)


def _mean_and_weights(x_BND: Tensor, dc_D: Tensor, hc_D: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return x_BND.mean(dim=1, keepdim=True), (dc_D - hc_D).to(x_BND.dtype), hc_D.to(x_BND.dtype, copy=True)


def _reweighted(x: Tensor, mean: Tensor, shift: Tensor, gain: Tensor, times: int) -> Tensor:
    # t itself is rounded to the dtype of x, not 1+t, in which a small t would vanish.
    return torch.addcmul(torch.addcmul(x, mean, shift, value=times), x, gain, value=times)
