r"""The Gram form: :math:`H = \mp s^2 BB^\top` with :math:`W_V = B` and :math:`W_O = \mp s^2 B^\top`.

Every symmetric H with its spectrum in the interval can be written so, and no factorisation is needed, only the largest
singular value of B: :math:`s^2 = \min(1, limit/\sigma_1(B)^2)`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from unsmooth.remedies.spectral.form import Form, stacked
from unsmooth.remedies.spectral.interval import Interval
from unsmooth.remedies.spectral.precision import full_precision
from unsmooth.remedies.spectral.projecting import HeadMaps, project
from unsmooth.remedies.spectral.scaled import scaled_rows
from unsmooth.remedies.spectral.slots import ValueSlots, copy_all, random_orthonormal


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
        """One power step for all layers: u ← BBᵀu/‖·‖, σ₁² ≈ ‖Bw‖² with w the unit vector along Bᵀu."""
        grams = [form for form in forms if isinstance(form, Gram)]
        rows_LMD = stacked(grams)
        with torch.autocast(rows_LMD.device.type, enabled=False):
            before_LD1 = torch.stack([form.direction for form in grams]).to(rows_LMD.dtype).unsqueeze(-1)
            across_LM1 = rows_LMD @ before_LD1
            after_LD1 = rows_LMD.mT @ across_LM1
            tiny = torch.finfo(after_LD1.dtype).tiny
            length_L11 = torch.linalg.vector_norm(after_LD1, dim=(1, 2), keepdim=True).clamp(min=tiny)
            largest_L11 = length_L11 / torch.linalg.vector_norm(across_LM1, dim=(1, 2), keepdim=True).clamp(min=tiny)
            factors_L = grams[0].factor_for(largest_L11).flatten()
            after_LD = (after_LD1 / length_L11).squeeze(-1)
        places = [form.direction for form in grams] + [form.factor for form in grams]
        copy_all(places, [*after_LD.unbind(), *factors_L.unbind()])

    @torch.no_grad()
    def settle(self) -> None:
        """σ₁ and its vector by an eigendecomposition of BᵀB or BBᵀ, whichever is smaller."""
        rows_MD = stacked([self])[0]
        with full_precision(rows_MD.device):
            values, vectors = torch.linalg.eigh(rows_MD @ rows_MD.mT)
            direction_D = vectors[:, -1] @ rows_MD
        length = direction_D.norm()
        if length > 0:  # as it is not where all weights are zero
            copy_all([self.direction], [direction_D / length])
        copy_all([self.factor], [self.factor_for(values[-1].clamp(min=0.0).sqrt())])

    def factor_for(self, largest: Tensor) -> Tensor:
        """∓s²/group for σ₁: B is left alone until it reaches the limit."""
        limit = self.interval.limit
        return largest.clamp(min=math.sqrt(limit)).pow(-2) * (limit * self.interval.sign / self.slots.group)

    def report(self) -> Mapping[str, float]:
        """How much the cap takes away: 1 while B is inside the interval by itself."""
        self.keep_current()
        return {"scale": abs(float(self.factor)) * self.slots.group}
