r"""The general form of P1: :math:`H = V\Lambda V^{-1}`, with the pseudo-inverse where V has fewer columns than rows.

V is the value weight itself, and its inverse is followed by Newton steps from that of the pass before, all layers in
one call. The backward pass needs no more than the inverse: of :math:`X = V^{-1}` and the gradient G that X gets, V gets
:math:`-X^\top G X^\top`.

Eigenvalues in the interval do not bound the symmetric part of such an H, nor its norm: only
:math:`\|H\|_2 \le cond(V)\max|\lambda|` holds. With a badly conditioned V, similarity may rise for many layers
although every eigenvalue sharpens. So the condition number is watched.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from unsmooth.remedies.precision import full_precision
from unsmooth.remedies.spectral.form import Form, stacked
from unsmooth.remedies.spectral.interval import Interval
from unsmooth.remedies.spectral.newton import followed_inverse
from unsmooth.remedies.spectral.orthogonal import Diagonal
from unsmooth.remedies.spectral.slots import ValueSlots
from unsmooth.remedies.together import copy_all

# cond(V) from which on a warning is given.
WORRYING_CONDITION = 100.0
# In training it is looked at once in so many passes, because looking waits for the device.
_LOOK_EVERY = 200


class General(Diagonal):
    """H = VΛV⁻¹, the inverse in float32 or better: followed in training, exact in evaluation and when folded."""

    follows = ("inverse",)
    inverse: Tensor
    _passes = 0
    _warned = False

    def __init__(self, slots: ValueSlots, interval: Interval, how: str, like: Mapping[str, Any]) -> None:
        super().__init__(slots, interval, how, like)
        shape = (slots.width, slots.rows().shape[-1])
        self.register_buffer("inverse", torch.zeros(shape, dtype=slots.exact_dtype(), device=self.psi.device))

    def output_rows(self) -> Tensor:
        """ΛV⁻¹, divided among the query heads that read one value head."""
        self.keep_current()
        weight = self.slots.parameter()
        with torch.autocast(weight.device.type, enabled=False):
            rows_GED = self.slots.rows().to(self.inverse.dtype)
            how: Any = _CompiledInverse if torch.compiler.is_dynamo_compiling() else _Inverse
            inverse_MD: Tensor = how.apply(rows_GED.flatten(0, 1), self.inverse)
            spectrum_M1 = self.spectrum().to(inverse_MD.dtype).unsqueeze(-1) / self.slots.group
            out_GED = (spectrum_M1 * inverse_MD).view(rows_GED.shape)
        return self.slots.per_query_head(out_GED.to(weight.dtype))

    @classmethod
    def prepare(cls, forms: Sequence[Form]) -> None:
        """Look at the condition numbers once in a while."""
        super().prepare(forms)
        for form in forms:
            if isinstance(form, General) and form.training and not form.recorded():
                if form._passes % _LOOK_EVERY == 0:
                    form.look()
                form._passes += 1

    @classmethod
    @torch.no_grad()
    def advance(cls, forms: Sequence[Form]) -> None:
        """Newton steps for all layers."""
        found = [form for form in forms if isinstance(form, General)]
        inverse_LMD = followed_inverse(stacked(found), torch.stack([form.inverse for form in found]))
        copy_all([form.inverse for form in found], list(inverse_LMD.unbind()))

    def settle(self) -> None:
        """The inverse, exactly."""
        copy_all([self.inverse], [self._exact()])
        self.look()

    def complete(self, state: dict[str, Any], prefix: str) -> None:
        """The first versions had no inverse in their state."""
        if f"{prefix}inverse" not in state:
            state[f"{prefix}inverse"] = self._exact()

    @torch.no_grad()
    def _exact(self) -> Tensor:
        rows_MD = stacked([self])[0]
        with full_precision(rows_MD.device):
            # By QR: forming VᵀV would square the condition number. A singular V gives infinities.
            q_DM, r_MM = torch.linalg.qr(rows_MD.mT)
            inverse_MD: Tensor = torch.linalg.solve_triangular(r_MM, q_DM.mT, upper=True)
        return inverse_MD

    def look(self) -> None:
        """Warn, once, where V has become badly conditioned."""
        condition = self.condition()
        if not condition < WORRYING_CONDITION and not self._warned:
            self._warned = True
            warnings.warn(
                f"The condition number of V in a general-basis remedy is {condition:.0f}: eigenvalues say little about "
                'what such a layer does. basis="schur" needs no inverse; "orthogonal" and "gram" bound H.',
                UserWarning,
                stacklevel=2,
            )

    @torch.no_grad()
    def condition(self) -> float:
        """σ₁/σ_M of V."""
        rows_MD = stacked([self])[0]
        with full_precision(rows_MD.device):
            sizes = torch.linalg.svdvals(rows_MD)
        return float(sizes[0] / sizes[-1])

    def report(self) -> Mapping[str, float]:
        """The ends of the spectrum and the condition number."""
        return {**super().report(), "condition": self.condition()}


def _gradient(grad_MD: Tensor, rows_MD: Tensor, inverse_MD: Tensor) -> Tensor:
    """What V, as rows, gets of the gradient of its pseudo-inverse X: −XGᵀX, and of a V that is not square XXᵀG(I − VX).

    The second part is what turns the space that the columns span.
    """
    out_MD = -(inverse_MD @ grad_MD.mT @ inverse_MD)
    if len(rows_MD) < rows_MD.shape[-1]:
        outside_MD = grad_MD - (grad_MD @ rows_MD.mT) @ inverse_MD
        out_MD = out_MD + inverse_MD @ inverse_MD.mT @ outside_MD
    return out_MD


class _Inverse(torch.autograd.Function):
    """V⁺ (M, D), which somebody has found already, as a function of the rows (M, D) of Vᵀ."""

    generate_vmap_rule = True

    @staticmethod
    def forward(rows_MD: Tensor, inverse_MD: Tensor) -> Tensor:
        return inverse_MD.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0], output)
        ctx.save_for_forward(inputs[0], output)

    @staticmethod
    def backward(ctx: Any, grad_MD: Tensor) -> tuple[Tensor, None]:
        return _gradient(grad_MD, *ctx.saved_tensors), None

    @staticmethod
    def jvp(ctx: Any, rows_t: Tensor, _: None) -> Tensor:
        # The derivative is its own transpose: −X dV X has the form of −XGᵀX with dVᵀ for G, and so has the rest.
        return _gradient(rows_t, *ctx.saved_tensors)


class _CompiledInverse(torch.autograd.Function):
    """The same for torch.compile, which takes no function with a `jvp`."""

    @staticmethod
    def forward(ctx: Any, rows_MD: Tensor, inverse_MD: Tensor) -> Tensor:
        found = inverse_MD.clone()
        ctx.save_for_backward(rows_MD, found)
        return found

    @staticmethod
    def backward(ctx: Any, grad_MD: Tensor) -> tuple[Tensor, None]:
        return _gradient(grad_MD, *ctx.saved_tensors), None
