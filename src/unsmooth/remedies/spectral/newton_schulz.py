r"""The nearest matrix with orthonormal rows, by matrix products only.

One quintic Newton-Schulz step is :math:`X \leftarrow \tfrac18(15 I - 10 A + 3 A^2)X` with :math:`A = XX^\top`. It maps
a singular value σ to :math:`\sigma(15 - 10\sigma^2 + 3\sigma^4)/8`, which is 1 + 2.5(σ−1)³ near 1 and converges for any
σ up to :math:`\sqrt{7/3}`. (Coefficients tuned for speed far from 1, as optimisers use them, do not converge to 1.)
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


@torch.library.custom_op("unsmooth::orthonormal_rows", mutates_args=())
def orthonormal_rows(rows_LMD: Tensor, steps: int) -> Tensor:
    """Take Newton-Schulz steps towards orthonormal rows, many layers at once, without gradients.

    An operator of its own, so that it runs in full precision in a compiled model too. It waits for nothing and so may
    be recorded in a CUDA graph.

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


@orthonormal_rows.register_fake
def _like_input(rows_LMD: Tensor, steps: int) -> Tensor:
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
