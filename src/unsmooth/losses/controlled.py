"""A weight whose singular values are prescribed for good: spectrum control as a parametrisation, not as a penalty."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from unsmooth.errors import expected
from unsmooth.functional._metric import with_checked_options
from unsmooth.losses._states import Positive
from unsmooth.losses.spectrum import Decay, Rate, decay_of


class ControlledSpectrum(nn.Module):
    """W = U diag(c·t) Vᵀ with orthonormal U and V; for `torch.nn.utils.parametrize`.

    Args:
        scale: c.
        target_K: t, the decay.
    """

    target_K: Tensor

    def __init__(self, scale: float, target_K: Tensor) -> None:
        super().__init__()
        self.register_buffer("target_K", scale * target_K)

    def forward(self, left_MK: Tensor, right_NK: Tensor) -> Tensor:
        """The weight, from factors that need not be orthonormal any more."""
        dtype = left_MK.dtype
        with torch.autocast(
            left_MK.device.type, enabled=False
        ):  # a product in half precision has other singular values
            left_MK, right_NK = _orthonormal(left_MK), _orthonormal(right_NK)
            weight_MN: Tensor = left_MK * self.target_K.to(left_MK.dtype) @ right_NK.mT
        return weight_MN.to(dtype)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Moved with the module, but never rounded: what is prescribed holds for whatever precision comes later."""
        target_K = self.target_K
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if self.target_K.dtype != target_K.dtype and self.target_K.device.type not in ("meta", "mps"):
            self.target_K = target_K.to(self.target_K.device)
        return self

    def right_inverse(self, weight_MN: Tensor) -> tuple[Tensor, Tensor]:
        """The singular vectors of a weight; its singular values are let go."""
        left_MK, _, right_KN = torch.linalg.svd(weight_MN.double(), full_matrices=False)
        return left_MK.to(weight_MN.dtype), right_KN.mT.contiguous().to(weight_MN.dtype)


@with_checked_options
def control_spectrum(
    module: nn.Module,
    name: str = "weight",
    *,
    decay: Decay = "exponential",
    rate: Rate = 0.01,
    power: Positive = 1.0,
    scale: Positive | None = None,
) -> nn.Module:
    r"""Have a weight keep singular values that decay as prescribed, in place, and learn only its directions.

    .. math:: W = U\, \mathrm{diag}(c\, t_k)\, V^T, \qquad U^T U = V^T V = I

    Wang et al. 2020 learn U, Σ and V under penalties that keep them near this; here it holds exactly, U and V being
    the Q of QR factorisations of what is learned. Call it before the optimiser is built, as there are other parameters
    then; ``torch.nn.utils.parametrize.remove_parametrizations(module, name)`` leaves a plain weight.

    Args:
        module: A linear map or an embedding. Not one whose weight is tied to another's: only this one would change.
        name: Of a weight that is a matrix.
        decay: "exponential" or "polynomial", as in `spectrum`; so are
        rate: ρ and
        power: γ.
        scale: c, the largest singular value. None takes the one that keeps the weight's Frobenius norm.

    Returns:
        The module.

    Example:
        >>> layer = control_spectrum(nn.Linear(3, 2), decay="polynomial", rate=1.0, scale=4.0)
        >>> torch.linalg.svdvals(layer.weight).detach().round(decimals=4)  # 4 and 4/2
        tensor([4., 2.])
    """
    weight = getattr(module, name, None)
    if not isinstance(weight, nn.Parameter) or weight.ndim != 2:
        got = "none" if weight is None else f"{type(weight).__name__} of shape {tuple(getattr(weight, 'shape', ()))}"
        raise expected(f"a matrix {name!r} among the module's own parameters", got, 'name="weight" of a linear map')
    if not bool(weight.isfinite().all()):
        raise expected(f"finite numbers in {name!r}", "NaN or Inf", "a weight as it was before training diverged")
    target_K = decay_of(min(weight.shape), decay, rate, power).to(weight.device)
    if scale is None:
        scale = float(torch.linalg.matrix_norm(weight.detach().double()) / torch.linalg.vector_norm(target_K))
    if scale == 0:
        raise expected("a weight that is not all zero, or a scale", "neither", "scale=1.0")
    parametrize.register_parametrization(module, name, ControlledSpectrum(scale, target_K))
    return module


def _orthonormal(columns_MK: Tensor) -> Tensor:
    """Q of QR with a positive diagonal of R: orthonormal columns stay what they are. In float32 or better."""
    q_MK, r_KK = torch.linalg.qr(columns_MK.to(torch.promote_types(columns_MK.dtype, torch.float32)))
    signs_K = torch.where(r_KK.diagonal() < 0, -1.0, 1.0).to(q_MK.dtype)
    oriented_MK: Tensor = q_MK * signs_K
    return oriented_MK
