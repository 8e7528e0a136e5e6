r"""The Gram form: :math:`H = \mp s^2 BB^\top` with :math:`W_V = B` and :math:`W_O = \mp s^2 B^\top`.

Every symmetric H with its spectrum in the interval can be written so, and no factorisation is needed, only the largest
singular value of B: :math:`s^2 = \min(1, limit/\sigma_1(B)^2)`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from unsmooth.remedies.leading import leading, power_step
from unsmooth.remedies.spectral.form import Form, stacked
from unsmooth.remedies.spectral.interval import Interval
from unsmooth.remedies.spectral.projecting import HeadMaps, project
from unsmooth.remedies.spectral.scaled import scaled_rows
from unsmooth.remedies.spectral.slots import ValueSlots, random_orthonormal
from unsmooth.remedies.together import copy_all


class Gram(Form):
    """H = ∓s²BBᵀ.

    In training, σ₁ is followed by one power step a pass, from a vector that is kept; an estimate from below, so an
    eigenvalue may be past the limit by a little for a while. In evaluation, and when folded, σ₁ is exact. No gradient
    goes through s: the cap scales what B gets, and does not keep B itself from growing.
    """

    factor: Tensor
    direction: Tensor

    def __init__(self, slots: ValueSlots, interval: Interval) -> None:
        super().__init__(slots, interval)
        device, dtype = slots.parameter().device, slots.exact_dtype()
        # ∓s²/group, in one number, so that a layer costs one multiplication.
        self.register_buffer("factor", torch.ones((), device=device, dtype=dtype), persistent=False)
        # Any start will do unless it is orthogonal to the first singular vector.
        direction_D = torch.randn(slots.rows().shape[-1], device=device, dtype=dtype)
        self.register_buffer("direction", direction_D / direction_D.norm())

    def begin(self, heads: HeadMaps | None, size: float) -> Tensor:
        """B = eigenvectors · √|eigenvalues|; afresh, √size times random orthonormal columns."""
        if heads is None:
            return random_orthonormal(self.slots) * math.sqrt(size * self.interval.limit)
        vectors_GED, values_GE = project(heads, self.interval)
        return (vectors_GED * values_GE.abs().sqrt().unsqueeze(-1)).flatten(0, 1)

    def output_rows(self) -> Tensor:
        """∓s²Bᵀ, divided among the query heads that read one value head."""
        self.keep_current()
        return self.slots.per_query_head(scaled_rows(self.slots, self.factor))

    @classmethod
    @torch.no_grad()
    def advance(cls, forms: Sequence[Form]) -> None:
        """One power step for all layers, which gives σ₁ too."""
        grams = [form for form in forms if isinstance(form, Gram)]
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
