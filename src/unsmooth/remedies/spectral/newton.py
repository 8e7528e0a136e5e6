r"""Functions of matrices by matrix products only: nothing here waits for the device or factorises.

*The nearest orthonormal rows.* One quintic Newton-Schulz step is :math:`X \leftarrow \tfrac18(15 I - 10 A + 3 A^2)X`
with :math:`A = XX^\top`. It maps a singular value σ to :math:`\sigma(15 - 10\sigma^2 + 3\sigma^4)/8`, which is
1 + 2.5(σ−1)³ near 1 and converges for any σ up to :math:`\sqrt{7/3}`. (Coefficients tuned for speed far from 1, as
optimisers use them, do not converge to 1.)

*An inverse that is followed.* With X near V⁻¹ and R = I − XV, k Newton steps X ← (2I − XV)X at once are
:math:`(I + R^{2^{k-1}}) \cdots (I + R^2)(I + R)X`, which leaves the residual :math:`R^{2^k}`.

*Singular values clipped.* The same quintic steps, taken only where σ is past the limit: the projector onto that part is
½(I + sign(A − I)), and the sign of a symmetric matrix is again a limit of odd polynomials.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from unsmooth.remedies.precision import full_precision

# Largest σ² that a step is given: below 7/3, from where it would diverge.
_SAFE = 2.0
# So near to orthonormal that two steps more leave nothing but rounding, in float64 too.
_ALMOST = 1e-3
_PATIENCE = 8
# Newton steps of a followed inverse: one optimiser step at a rate of 1e-2 leaves a residual near 1, whose 64th power is
# small; and the quintic steps of what is clipped, enough from any distance past the limit.
_FOLLOWED, _CLIPPED = 6, 4


# An odd quintic that takes what is far from 0 and 1 to about 1 in few steps; then the one that converges to 1.
_FAR, _NEAR = (3.4445, -4.7750, 2.0315), (15 / 8, -10 / 8, 3 / 8)
_SIGN = (*[_FAR] * 5, *[_NEAR] * 3)


@torch.library.custom_op("unsmooth::orthonormal_rows", mutates_args=())
def orthonormal_rows(rows_LMD: Tensor, steps: int) -> Tensor:
    """Take Newton-Schulz steps towards orthonormal rows, many layers at once, without gradients.

    As those below an operator of its own, so that it runs in full precision in a compiled model too.

    >>> stretched = torch.tensor([[[1.1, 0.0], [0.0, 0.9]]])
    >>> orthonormal_rows(stretched, 2)
    tensor([[[1.0000, 0.0000],
             [0.0000, 1.0000]]])
    """
    with full_precision(rows_LMD.device):
        gram_LMM = rows_LMD @ rows_LMD.mT
        # The largest row sum bounds σ₁²: a step of the optimiser that went too far is scaled back, not blown up.
        bound_L11 = gram_LMM.abs().sum(dim=-1).amax(dim=-1)[:, None, None]
        shrink_L11 = (_SAFE / bound_L11).clamp(max=1.0)
        rows_LMD = rows_LMD * shrink_L11.sqrt()
        gram_LMM = gram_LMM * shrink_L11
        for step in range(steps):
            if step > 0:
                gram_LMM = rows_LMD @ rows_LMD.mT
            factor_LMM = torch.baddbmm(gram_LMM, gram_LMM, gram_LMM, beta=-10 / 8, alpha=3 / 8)
            rows_LMD = torch.baddbmm(rows_LMD, factor_LMM, rows_LMD, beta=15 / 8)
    return rows_LMD


@torch.library.custom_op("unsmooth::followed_inverse", mutates_args=())
def followed_inverse(rows_LMD: Tensor, inverse_LMD: Tensor) -> Tensor:
    """The pseudo-inverses (L, M, D) of the V whose columns the rows are, from those of nearly the same V.

    Where the steps would lead away, as R is too large, the transpose of V, made small enough, is what the next ones
    start from: they converge from there, and with it the eigenvalues of VΛX are still between 0 and those of Λ.

    >>> followed_inverse(torch.tensor([[[2.0]]]), torch.tensor([[[0.45]]]))
    tensor([[[0.5000]]])
    """
    with full_precision(rows_LMD.device):
        residual_LMM = _residual(rows_LMD, inverse_LMD)
        if rows_LMD.shape[-2] < rows_LMD.shape[-1]:
            # Back into the space that the columns of V span now, (XXᵀ)Vᵀ, which near to the inverse is a small change.
            near_L11 = torch.linalg.matrix_norm(residual_LMM, keepdim=True) < 1.0
            inverse_LMD = torch.where(near_L11, (inverse_LMD @ inverse_LMD.mT) @ rows_LMD, inverse_LMD)
            residual_LMM = _residual(rows_LMD, inverse_LMD)
        stepped_LMD, power_LMM = inverse_LMD, residual_LMM
        for _ in range(_FOLLOWED):
            stepped_LMD = torch.baddbmm(stepped_LMD, power_LMM, stepped_LMD)
            power_LMM = power_LMM @ power_LMM
        bound_L11 = torch.linalg.matrix_norm(rows_LMD, 1, keepdim=True)
        bound_L11 = bound_L11 * torch.linalg.matrix_norm(rows_LMD, math.inf, keepdim=True)  # at least σ₁²
        was_L11, is_L11 = (torch.linalg.matrix_norm(one, keepdim=True) for one in (residual_LMM, power_LMM))
    return torch.where(is_L11 < was_L11.clamp(min=_ALMOST), stepped_LMD, rows_LMD / bound_L11)


def _residual(rows_LMD: Tensor, inverse_LMD: Tensor) -> Tensor:
    identity_MM = torch.eye(rows_LMD.shape[-2], dtype=rows_LMD.dtype, device=rows_LMD.device)
    return identity_MM - inverse_LMD @ rows_LMD.mT


@torch.library.custom_op("unsmooth::clipped_rows", mutates_args=())
def clipped_rows(rows_LMD: Tensor, largest: float) -> Tensor:
    """Rows whose singular values past `largest` are brought back to it, the others left alone.

    A layer that is inside keeps every bit. Values within a half per cent of the limit count as at it.

    >>> clipped_rows(torch.tensor([[[2.0, 0.0], [0.0, 0.5]]]), 1.0)
    tensor([[[1.0000, 0.0000],
             [0.0000, 0.5000]]])
    """
    with full_precision(rows_LMD.device):
        gram_LMM = rows_LMD @ rows_LMD.mT / largest**2
        # ‖A‖₂ ≤ ‖A⁸‖_F^⅛, which is at most M^(1/16) too large; A has its norm taken out so that A⁸ has digits.
        size_L11 = torch.linalg.matrix_norm(gram_LMM, keepdim=True).clamp(min=torch.finfo(gram_LMM.dtype).tiny)
        power_LMM = gram_LMM / size_L11
        for _ in range(3):
            power_LMM = power_LMM @ power_LMM
        bound_L11 = size_L11 * torch.linalg.matrix_norm(power_LMM, keepdim=True) ** (1 / 8)
        sign_LMM = gram_LMM.clone()
        sign_LMM.diagonal(dim1=-2, dim2=-1).sub_(1.0)
        sign_LMM = sign_LMM / (bound_L11 - 1.0).clamp(min=1.0)
        for one, three, five in _SIGN:
            square_LMM = sign_LMM @ sign_LMM
            factor_LMM = torch.baddbmm(square_LMM, square_LMM, square_LMM, beta=three, alpha=five)
            sign_LMM = torch.baddbmm(sign_LMM, factor_LMM, sign_LMM, beta=one)
        past_LMM = sign_LMM / 2
        past_LMM.diagonal(dim1=-2, dim2=-1).add_(0.5)
        # Towards A^(−½) on what is past the limit, from a safe distance where that is far; and 0 elsewhere.
        root_LMM = past_LMM * (_SAFE / bound_L11).clamp(max=1.0).sqrt()
        for _ in range(_CLIPPED):
            even_LMM = root_LMM @ gram_LMM @ root_LMM
            factor_LMM = torch.baddbmm(even_LMM, even_LMM, even_LMM, beta=-10 / 8, alpha=3 / 8)
            root_LMM = torch.baddbmm(root_LMM, factor_LMM, root_LMM, beta=15 / 8)
        # 1 + p(a^(−½) − 1), which is 1 at the limit itself, where a = 1 and p is anything between 0 and 1.
        inside_LMD = torch.baddbmm(rows_LMD, torch.baddbmm(-past_LMM, past_LMM, root_LMM), rows_LMD)
    return torch.where(bound_L11 <= 1.0, rows_LMD, inside_LMD)


@orthonormal_rows.register_fake
def _like_rows(rows_LMD: Tensor, steps: int) -> Tensor:
    return torch.empty_like(rows_LMD)


@followed_inverse.register_fake
def _like_inverse(rows_LMD: Tensor, inverse_LMD: Tensor) -> Tensor:
    return torch.empty_like(rows_LMD)


@clipped_rows.register_fake
def _like_clipped(rows_LMD: Tensor, largest: float) -> Tensor:
    return torch.empty_like(rows_LMD)


@torch.no_grad()
def nearest_orthonormal(rows_MD: Tensor) -> Tensor:
    """The nearest matrix with orthonormal rows to working precision, whatever it takes; waits for the device.

    >>> nearest_orthonormal(torch.tensor([[3.0, 0.0, 0.0], [0.0, 0.2, 0.0]])).round(decimals=5).tolist()
    [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]
    """
    near: Tensor = rows_MD
    rounding = 2 * len(rows_MD) * torch.finfo(rows_MD.dtype).eps
    for _ in range(_PATIENCE):
        off = float(_off(near).norm())
        if off < rounding:
            return near  # so that doing it twice changes no bit
        near = orthonormal_rows(near.unsqueeze(0), 2)[0]
        if off < _ALMOST or not math.isfinite(off):
            return near
    # Rows that (nearly) depend on each other: the singular vectors say what is missing.
    left, _, right = torch.linalg.svd(rows_MD, full_matrices=False)
    polar: Tensor = left @ right
    return polar


@torch.no_grad()
def off_orthonormal(rows_MD: Tensor) -> float:
    """‖XXᵀ − I‖₂, 0 where rows are orthonormal.

    >>> off_orthonormal(torch.tensor([[2.0, 0.0]]))  # 4 - 1
    3.0
    """
    return float(torch.linalg.eigvalsh(_off(rows_MD)).abs().max())


def _off(rows_MD: Tensor) -> Tensor:
    with full_precision(rows_MD.device):
        gram_MM = rows_MD @ rows_MD.mT
    gram_MM.diagonal().sub_(1.0)
    return gram_MM
