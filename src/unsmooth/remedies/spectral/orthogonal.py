r"""The orthogonal form: :math:`H = V\Lambda V^\top`, V with orthonormal columns, W_V = V and W_O = ΛVᵀ.

P1 had V from a QR decomposition in its first version; here V is the value weight itself, pulled back to orthonormal
columns before each pass by two Newton-Schulz steps, all layers in one call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from unsmooth.remedies.spectral.form import Form, stacked
from unsmooth.remedies.spectral.interval import Interval, eigenvalues, psi_for
from unsmooth.remedies.spectral.newton import nearest_orthonormal, off_orthonormal, orthonormal_rows
from unsmooth.remedies.spectral.projecting import HeadMaps, polar, project
from unsmooth.remedies.spectral.slots import ValueSlots, random_orthonormal, write_all
from unsmooth.remedies.together import copy_all

STEPS = 2


class Diagonal(Form):
    """A form with eigenvalues Λ of its own: V, and one ψ per column."""

    psi: nn.Parameter

    def __init__(self, slots: ValueSlots, interval: Interval, how: str, like: Mapping[str, Any]) -> None:
        super().__init__(slots, interval)
        self.how = how
        self.psi = nn.Parameter(torch.zeros(slots.width, **like))

    def begin(self, heads: HeadMaps | None, size: float) -> Tensor:
        """V and Λ near to what the heads do; afresh, a random V and equal eigenvalues."""
        if heads is None:
            rows_MD = random_orthonormal(self.slots)
            values_M = torch.full_like(rows_MD[:, 0], size * self.interval.scale * self.interval.sign)
        else:
            rows_MD, values_M = self.near(heads)
        copy_all([self.psi], [psi_for(values_M, self.how, self.interval)])
        return rows_MD

    def near(self, heads: HeadMaps) -> tuple[Tensor, Tensor]:
        """V (M, D) near to the heads' eigenvectors, as rows, and what the heads do along them (M,).

        Eigenvectors of different heads are not orthogonal to each other, and V of a full-width layer would be nearly
        singular with them. The nearest orthonormal set is taken; turning the vector of λ by a small angle moves λqqᵀ by
        an amount in proportion to |λ|, so squared distances count by λ².
        """
        vectors_GED, values_GE = project(heads, self.interval)
        rows_MD = polar(vectors_GED * values_GE.square().unsqueeze(-1))
        return rows_MD, heads.along(rows_MD.view_as(vectors_GED)).flatten()

    def spectrum(self) -> Tensor:
        """Λ (M,)."""
        return eigenvalues(self.psi, self.how, self.interval)

    def report(self) -> Mapping[str, float]:
        """The ends of the spectrum."""
        spectrum = self.spectrum().detach()
        return {"lowest": float(spectrum.min()), "highest": float(spectrum.max())}


class Orthogonal(Diagonal):
    """H = VΛVᵀ.

    V is not computed from the value weight but written back into it, and no gradient goes through that: it is a
    projected step. At an orthonormal V the gradient of the loss is right as it is; the part of the optimiser's step
    that leaves the orthonormal matrices is what the next retraction takes away, and differentiating a retraction of a
    V that is orthonormal already would take away the same part, only earlier.

    A V of half precision is orthonormal to 1e-2 only, and rounding errors would pile up: its float32 original is kept
    beside it, takes the optimiser's steps and the retractions, and is cast for use.
    """

    follows = ("master",)
    master: Tensor | None

    def __init__(self, slots: ValueSlots, interval: Interval, how: str, like: Mapping[str, Any]) -> None:
        super().__init__(slots, interval, how, like)
        rows_MD = slots.whole().flatten(0, 1)
        low = rows_MD.dtype != slots.exact_dtype()
        self.register_buffer("master", rows_MD.to(slots.exact_dtype()) if low else None)

    def begin(self, heads: HeadMaps | None, size: float) -> Tensor:
        """As every form with a Λ, and note the original."""
        rows_MD = super().begin(heads, size)
        if self.master is not None:
            copy_all([self.master], [rows_MD])
        return rows_MD

    def output_rows(self) -> Tensor:
        """ΛVᵀ, divided among the query heads that read one value head."""
        self.keep_current()
        rows_GED = self.slots.rows()
        spectrum_M = self.spectrum()
        if self.slots.group > 1:
            spectrum_M = spectrum_M / self.slots.group
        return self.slots.per_query_head(rows_GED * spectrum_M.view(*rows_GED.shape[:2], 1))

    @classmethod
    @torch.no_grad()
    def advance(cls, forms: Sequence[Form]) -> None:
        """Two Newton-Schulz steps for all layers."""
        found = [form for form in forms if isinstance(form, Orthogonal)]
        _write(found, orthonormal_rows(_originals(found), STEPS))

    @torch.no_grad()
    def settle(self) -> None:
        """As many steps as it takes."""
        self._keep_original()
        _write([self], nearest_orthonormal(_originals([self])[0]).unsqueeze(0))

    def _keep_original(self) -> None:
        """Have one where weights are of half precision, also where the model was cast to it later, and only there."""
        low = self.slots.parameter().dtype != self.slots.exact_dtype()
        if low and self.master is None:
            self.master = self.slots.whole().flatten(0, 1).to(self.slots.exact_dtype())
        elif not low:
            self.master = None

    def complete(self, state: dict[str, Any], prefix: str) -> None:
        """Weights of full precision have no original beside them, but may be loaded into a model of half, or back."""
        self._keep_original()
        if self.master is None:
            state.pop(f"{prefix}master", None)
        elif f"{prefix}master" not in state:
            state[f"{prefix}master"] = self.slots.whole().flatten(0, 1)

    def report(self) -> Mapping[str, float]:
        """The ends of the spectrum, and how far V is from orthonormal."""
        rows_MD = self.slots.whole().flatten(0, 1).to(self.slots.exact_dtype())
        return {**super().report(), "off_orthonormal": off_orthonormal(rows_MD)}


def _originals(forms: Sequence[Orthogonal]) -> Tensor:
    """(L, M, D) in full precision: what the optimiser did to the copies in use is done to the originals."""
    rows_LMD = stacked(forms)
    masters = [form.master for form in forms if form.master is not None]
    if len(masters) < len(forms):
        return rows_LMD
    master_LMD = torch.stack(masters)
    in_use_LMD = master_LMD.to(forms[0].slots.parameter().dtype).to(master_LMD.dtype)
    return master_LMD + (rows_LMD - in_use_LMD)


def _write(forms: Sequence[Orthogonal], rows_LMD: Tensor) -> None:
    rows = list(rows_LMD.unbind())
    write_all([form.slots for form in forms], rows)
    masters = [form.master for form in forms if form.master is not None]
    if len(masters) == len(forms):
        copy_all(masters, rows)
