r"""The Gram form: :math:`H = \mp BB^\top` with :math:`W_V = B` and :math:`W_O = \mp B^\top`.

Every symmetric H with its spectrum in the interval can be written so, and no factorisation is needed. What holds the
eigenvalues inside the limit is either each by itself, singular values of B past √limit being clipped there before each
pass, or one factor for all of a layer, :math:`s^2 = \min(1, limit/\sigma_1(B)^2)`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import is_batchedtensor

from unsmooth.remedies.leading import leading, power_step
from unsmooth.remedies.precision import full_precision
from unsmooth.remedies.spectral.form import Form, stacked
from unsmooth.remedies.spectral.interval import Interval
from unsmooth.remedies.spectral.newton import clipped_rows
from unsmooth.remedies.spectral.projecting import HeadMaps, project
from unsmooth.remedies.spectral.slots import ValueSlots, random_orthonormal, write_all
from unsmooth.remedies.together import copy_all


class Gram(Form):
    """H = ∓BBᵀ, the singular values of B clipped one by one.

    As the orthogonal form does with V, the clipped B is written back: a projected step. At a B inside the limit the
    gradient is right as it is, one direction at the limit takes nothing from the others, and the way back is open. In
    training an eigenvalue may be past the limit by a little; in evaluation, and when folded, none is.
    """

    factor: Tensor

    def __init__(self, slots: ValueSlots, interval: Interval) -> None:
        super().__init__(slots, interval)
        # ∓1/group, in one number, so that a layer costs one multiplication.
        factor = torch.tensor(interval.sign / slots.group, dtype=slots.exact_dtype(), device=slots.parameter().device)
        self.register_buffer("factor", factor, persistent=False)

    def begin(self, heads: HeadMaps | None, size: float) -> Tensor:
        """B = eigenvectors · √|eigenvalues|; afresh, √size times random orthonormal columns."""
        if heads is None:
            return random_orthonormal(self.slots) * math.sqrt(size * self.interval.scale)
        vectors_GED, values_GE = project(heads, self.interval)
        return (vectors_GED * values_GE.abs().sqrt().unsqueeze(-1)).flatten(0, 1)

    def output_rows(self) -> Tensor:
        """∓Bᵀ, divided among the query heads that read one value head."""
        self.keep_current()
        return self.slots.per_query_head(scaled_rows(self.slots, self.factor))

    @classmethod
    @torch.no_grad()
    def advance(cls, forms: Sequence[Form]) -> None:
        """One clipping step for all layers."""
        if math.isfinite(limit := forms[0].interval.limit):
            clipped_LMD = clipped_rows(stacked(forms), math.sqrt(limit))
            write_all([form.slots for form in forms], list(clipped_LMD.unbind()))

    @torch.no_grad()
    def settle(self) -> None:
        """Clip exactly; B that is inside keeps every bit."""
        rows_MD, largest = stacked([self])[0], math.sqrt(self.interval.limit)
        with full_precision(rows_MD.device):
            left, sizes_M, right = torch.linalg.svd(rows_MD, full_matrices=False)
            exact, stored = (torch.finfo(one).eps for one in (rows_MD.dtype, self.slots.parameter().dtype))
            if float(sizes_M[0]) > largest * (1 + max(2 * len(rows_MD) * exact, stored / 2)):
                self.slots.write(left * sizes_M.clamp(max=largest) @ right)


class RescaledGram(Gram):
    """H = ∓s²BBᵀ.

    In training, σ₁ is followed by one power step a pass, from a vector that is kept; an estimate from below, so an
    eigenvalue may be past the limit by a little for a while. In evaluation, and when folded, σ₁ is exact. No gradient
    goes through s: the cap scales what B gets, and does not keep B itself from growing, so that one direction that
    grows suppresses all others.
    """

    direction: Tensor

    def __init__(self, slots: ValueSlots, interval: Interval) -> None:
        super().__init__(slots, interval)
        # Any start will do unless it is orthogonal to the first singular vector.
        direction_D = torch.randn(slots.rows().shape[-1], device=self.factor.device, dtype=self.factor.dtype)
        self.register_buffer("direction", direction_D / direction_D.norm())

    @classmethod
    @torch.no_grad()
    def advance(cls, forms: Sequence[Form]) -> None:
        """One power step for all layers, which gives σ₁ too."""
        grams = [form for form in forms if isinstance(form, RescaledGram)]
        rows_LMD = stacked(grams)
        _, after_LD, largest_L = power_step(rows_LMD, torch.stack([form.direction for form in grams]).to(rows_LMD))
        places = [form.direction for form in grams] + [form.factor for form in grams]
        copy_all(places, [*after_LD.unbind(), *grams[0].factor_for(largest_L).unbind()])

    @torch.no_grad()
    def settle(self) -> None:
        """σ₁ and its vector, exactly."""
        direction_D, largest = leading(stacked([self])[0])
        if largest > 0:  # as it is not where all weights are zero
            copy_all([self.direction], [direction_D])
        copy_all([self.factor], [self.factor_for(largest)])

    def factor_for(self, largest: Tensor) -> Tensor:
        """∓s²/group for σ₁: B is left alone until it reaches the limit."""
        limit = self.interval.limit
        return largest.clamp(min=math.sqrt(limit)).pow(-2) * (limit * self.interval.sign / self.slots.group)

    def report(self) -> Mapping[str, float]:
        """How much the cap takes away: 1 while B is inside the interval by itself."""
        self.keep_current()
        return {"scale": abs(float(self.factor)) * self.slots.group}


class _ScaledRows(torch.autograd.Function):
    """Value weights times a number, with a backward pass of few kernels where they are fused with queries and keys.

    Left to autograd, the gradient of a slice is copied into a fresh tensor of zeros after it was scaled and laid out
    anew: small kernels, in every layer, which is what the Gram form costs in a small model.
    """

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
