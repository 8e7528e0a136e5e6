r"""The Schur form: :math:`H = QTQ^\top`, Q with orthonormal columns, T upper triangular, W_V = Q and W_O = TQᵀ.

Every matrix with real eigenvalues has this form, defective ones too, and its eigenvalues stand on the diagonal of T:
all that the general form reaches, without an inverse. Each head's H has the eigenvalues of its own slots.

The strict upper part of T is free. It is what makes H other than symmetric, and nothing bounds it unless `upper` does:
then :math:`\|H\|_2 \le limit + upper`. Where it is large, eigenvalues in the interval say little of finitely many
layers, the symmetric part of a sharpening H may have positive eigenvalues, and eigenvalues computed from weights in
float32 may lie outside the interval although those of QTQᵀ do not: they are the more sensitive the less normal H is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from unsmooth.remedies.spectral.interval import Interval
from unsmooth.remedies.spectral.orthogonal import Orthogonal
from unsmooth.remedies.spectral.projecting import HeadMaps, nearest_triangular
from unsmooth.remedies.spectral.slots import ValueSlots
from unsmooth.remedies.together import copy_all


class Schur(Orthogonal):
    """H = QTQᵀ: the orthogonal form with more than a diagonal.

    Args:
        slots: Where the value weights are.
        interval: Of the diagonal.
        how: As ψ becomes the diagonal.
        like: What new parameters are like.
        upper: Largest Frobenius norm of the strict upper part; None for any. A larger one is scaled down, with
            gradients that know it.
    """

    upper: nn.Parameter

    def __init__(
        self, slots: ValueSlots, interval: Interval, how: str, like: Mapping[str, Any], upper: float | None
    ) -> None:
        super().__init__(slots, interval, how, like)
        self.most = upper
        self.upper = nn.Parameter(torch.zeros(slots.width, slots.width, **like))

    def begin(self, heads: HeadMaps | None, size: float) -> Tensor:
        """Q and T near to what the heads do; afresh, a random Q and a T that is a multiple of the identity."""
        if heads is None:
            copy_all([self.upper], [torch.zeros_like(self.upper)])
        return super().begin(heads, size)

    def near(self, heads: HeadMaps) -> tuple[Tensor, Tensor]:
        """Q as rows and the diagonal; the rest of T is noted."""
        rows_MD, triangle_MM = nearest_triangular(heads, self.interval)
        copy_all([self.upper], [self._capped(triangle_MM.triu(1))])
        return rows_MD, triangle_MM.diagonal()

    def output_rows(self) -> Tensor:
        """TQᵀ, divided among the query heads that read one value head."""
        self.keep_current()
        weight = self.slots.parameter()
        with torch.autocast(weight.device.type, enabled=False):
            rows_GED = self.slots.rows().to(self.slots.exact_dtype())
            out_MD = (self.triangle() / self.slots.group) @ rows_GED.flatten(0, 1)
        return self.slots.per_query_head(out_MD.view(rows_GED.shape).to(weight.dtype))

    def triangle(self) -> Tensor:
        """T (M, M), in float32 or better."""
        exact = self.slots.exact_dtype()
        return self._capped(self.upper.to(exact).triu(1)) + self.spectrum().to(exact).diag_embed()

    def _capped(self, upper_MM: Tensor) -> Tensor:
        if self.most is None:
            return upper_MM
        capped_MM: Tensor = upper_MM * (self.most / torch.linalg.vector_norm(upper_MM).clamp(min=self.most))
        return capped_MM

    @torch.no_grad()
    def report(self) -> Mapping[str, float]:
        """What the orthogonal form says, ‖T‖_F above the diagonal, and ‖H‖₂, which that leaves open."""
        triangle_MM = self.triangle()
        return {
            **super().report(),
            "upper": float(triangle_MM.triu(1).norm()),
            "norm": float(torch.linalg.matrix_norm(triangle_MM, ord=2)),
        }
