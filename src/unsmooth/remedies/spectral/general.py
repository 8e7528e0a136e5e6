r"""The general form of P1: :math:`H = V\Lambda V^{-1}`, with the pseudo-inverse where V has fewer columns than rows.

Eigenvalues in the interval do not bound the symmetric part of such an H, nor its norm: only
:math:`\|H\|_2 \le cond(V)\max|\lambda|` holds. With a badly conditioned V, similarity may rise for many layers
although every eigenvalue sharpens. So the condition number is watched.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from unsmooth.remedies.precision import full_precision
from unsmooth.remedies.spectral.form import Form
from unsmooth.remedies.spectral.orthogonal import Diagonal

# cond(V) from which on a warning is given.
WORRYING_CONDITION = 100.0
# In training it is looked at once in so many passes, because looking waits for the device.
_LOOK_EVERY = 200


class General(Diagonal):
    """H = VΛV⁻¹, the inverse in float32 and differentiated through."""

    _passes = 0
    _warned = False

    def output_rows(self) -> Tensor:
        """ΛV⁻¹, divided among the query heads that read one value head."""
        weight = self.slots.parameter()
        with torch.autocast(weight.device.type, enabled=False):
            rows_GED = self.slots.rows().to(self.slots.exact_dtype())
            inverse_MD = _pseudo_inverse(rows_GED.flatten(0, 1))
            spectrum_M1 = self.spectrum().to(inverse_MD.dtype).unsqueeze(-1) / self.slots.group
            out_GED = (spectrum_M1 * inverse_MD).view_as(rows_GED)
        return self.slots.per_query_head(out_GED.to(weight.dtype))

    @classmethod
    def prepare(cls, forms: Sequence[Form]) -> None:
        """Look at the condition numbers once in a while."""
        for form in forms:
            if isinstance(form, General) and form.training and not form.recorded():
                if form._passes % _LOOK_EVERY == 0:
                    form.settle()
                form._passes += 1

    def settle(self) -> None:
        """Warn, once, where V has become badly conditioned."""
        condition = self.condition()
        if not condition < WORRYING_CONDITION and not self._warned:
            self._warned = True
            warnings.warn(
                f"The condition number of V in a general-basis remedy is {condition:.0f}: eigenvalues say little about "
                'what such a layer does. basis="orthogonal" or basis="gram" bound it.',
                UserWarning,
                stacklevel=2,
            )

    @torch.no_grad()
    def condition(self) -> float:
        """σ₁/σ_M of V."""
        rows_MD = self.slots.whole().flatten(0, 1).to(self.slots.exact_dtype())
        with full_precision(rows_MD.device):
            sizes = torch.linalg.svdvals(rows_MD)
        return float(sizes[0] / sizes[-1])

    def report(self) -> Mapping[str, float]:
        """The ends of the spectrum and the condition number."""
        return {**super().report(), "condition": self.condition()}


def _pseudo_inverse(rows_MD: Tensor) -> Tensor:
    """V⁺ (M, D) of the V whose columns the rows are.

    By QR: forming VᵀV would square the condition number, and torch's inverse of a square V cannot be recorded in a CUDA
    graph. Errors are not checked, as that would wait for the device; a singular V gives infinities.
    """
    q_DM, r_MM = torch.linalg.qr(rows_MD.mT)
    inverse_MD: Tensor = torch.linalg.solve_triangular(r_MM, q_DM.mT, upper=True)
    return inverse_MD
