r"""Matrices with eigenvalues in an interval near to what heads do now: symmetric ones, and any with real eigenvalues.

With :math:`H_h = W_V^h W_O^h` of rank d_h, the nearest symmetric matrix is :math:`\tfrac12(H_h + H_h^\top)`, and the
nearest with eigenvalues in the interval has them clipped. Of the at most 2·d_h nonzero eigenvalues at most d_h are of
either sign (the form is :math:`\tfrac12 x^\top(vw^\top + wv^\top)x` with d_h pairs), so nothing is lost by rank d_h.
All of it happens in the span of the columns of :math:`W_V^h` and the rows of :math:`W_O^h`: a 2d_h×2d_h problem per
head.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.linalg
import torch
from torch import Tensor

from unsmooth.remedies.precision import full_precision
from unsmooth.remedies.spectral.interval import Interval


@dataclass(frozen=True)
class HeadMaps:
    """H_g = V_g W_g for each value head, both as rows; where query heads share a value head, W is their sum.

    Args:
        v_GED: Row e of head g is column e of V_g.
        w_GED: Row e of head g is row e of W_g.
    """

    v_GED: Tensor
    w_GED: Tensor

    def along(self, rows_GED: Tensor) -> Tensor:
        """For each row x, x H_g xᵀ (G, E)."""
        return ((rows_GED @ self.v_GED.mT) * (rows_GED @ self.w_GED.mT)).sum(dim=-1)

    def squared_norms(self) -> Tensor:
        """‖H_g‖² (G,)."""
        return self.dot(self)

    def dot(self, other: HeadMaps) -> Tensor:
        """⟨H_g, H′_g⟩ (G,) by E×E products: tr(WᵀVᵀV′W′) = ⟨VᵀV′, WW′ᵀ⟩."""
        return ((self.v_GED @ other.v_GED.mT) * (self.w_GED @ other.w_GED.mT)).sum(dim=(-2, -1))

    def summed(self) -> Tensor:
        """Σ H_g (D, D)."""
        return self.v_GED.flatten(0, 1).mT @ self.w_GED.flatten(0, 1)


@torch.no_grad()
def project(heads: HeadMaps, interval: Interval) -> tuple[Tensor, Tensor]:
    """Eigenvectors as rows (G, E, D) and eigenvalues (G, E) of the nearest symmetric H_g with such a spectrum.

    >>> flip = HeadMaps(torch.tensor([[[1.0, 0.0]]]), torch.tensor([[[-3.0, 0.0]]]))  # H = diag(-3, 0)
    >>> vectors, values = project(flip, Interval(-1, 1.0))
    >>> vectors.abs().tolist(), values.tolist()
    ([[[1.0, 0.0]]], [[-1.0]])
    """
    width = heads.v_GED.shape[1]
    with full_precision(heads.v_GED.device):
        basis_GDK, parts_GKF = torch.linalg.qr(torch.cat([heads.v_GED, heads.w_GED], dim=1).mT)
        half_GKK = parts_GKF[..., :width] @ parts_GKF[..., width:].mT / 2
        values_GK, small_GKK = torch.linalg.eigh(half_GKK + half_GKK.mT)
        # In ascending order: the negative ones first.
        wanted = slice(0, width) if interval.sign < 0 else slice(-width, None)
        vectors_GED = (basis_GDK @ small_GKK[..., wanted]).mT
    return vectors_GED, interval.clip(values_GK[..., wanted])


def polar(weighted_GED: Tensor) -> Tensor:
    """The orthonormal rows (M, D) that are nearest to weighted ones, of all heads together."""
    left, _, right = torch.linalg.svd(weighted_GED.flatten(0, 1), full_matrices=False)
    rows_MD: Tensor = left @ right
    return rows_MD


@torch.no_grad()
def nearest_triangular(heads: HeadMaps, interval: Interval) -> tuple[Tensor, Tensor]:
    """Orthonormal Q as rows (M, D) and upper triangular T (M, M), its diagonal in the interval, with QTQᵀ near to H.

    Every head keeps the space that its values lie in, as far as those of other heads leave it: the nearest orthonormal
    set, each head's weighted by HHᵀ, as turning a direction by a small angle costs what the head does along it. Inside
    that space the real Schur form makes the head's own block of T triangular but for one entry of every complex pair; a
    head that is nearer as it is keeps its columns. T is then what the heads do along Q, cut below its diagonal.

    >>> head = HeadMaps(torch.eye(2)[None], torch.tensor([[[-0.5, 7.0], [0.0, -0.5]]]))  # one eigenvector only
    >>> rows, triangle = nearest_triangular(head, Interval(-1, 1.0))
    >>> torch.allclose(rows.mT @ triangle @ rows, head.summed(), atol=1e-5)
    True
    """
    with full_precision(heads.v_GED.device):
        left_GEE, _, right_GED = torch.linalg.svd(heads.v_GED, full_matrices=False)
        own_GED = left_GEE @ right_GED
        does_GED = (own_GED @ heads.v_GED.mT) @ heads.w_GED
        rows_GED = polar((does_GED @ does_GED.mT) @ own_GED).view_as(own_GED)
        own_GEE = (rows_GED @ heads.v_GED.mT) @ (heads.w_GED @ rows_GED.mT)
        turns = np.stack([scipy.linalg.schur(own_EE, output="real")[1].T for own_EE in own_GEE.double().cpu().numpy()])
        turn_GEE = torch.from_numpy(turns).to(own_GEE)
        lost_G, lost_turned_G = (_lost(one, interval) for one in (own_GEE, turn_GEE @ own_GEE @ turn_GEE.mT))
        rows_GED = torch.where((lost_turned_G < lost_G)[:, None, None], turn_GEE @ rows_GED, rows_GED)
        rows_MD = rows_GED.flatten(0, 1)
        full_MM = ((rows_GED @ heads.v_GED.mT) @ (heads.w_GED @ rows_MD.mT)).flatten(0, 1)
    return rows_MD, full_MM.triu(1) + interval.clip(full_MM.diagonal()).diag_embed()


def _lost(blocks_GEE: Tensor, interval: Interval) -> Tensor:
    """What cutting below the diagonal and clipping it takes away, squared (G,)."""
    diagonal_GE = blocks_GEE.diagonal(dim1=-2, dim2=-1)
    clipped_G = (diagonal_GE - interval.clip(diagonal_GE)).square().sum(dim=-1)
    return blocks_GEE.tril(-1).square().sum(dim=(-2, -1)) + clipped_G


@torch.no_grad()
def distances(before: HeadMaps, after: HeadMaps) -> dict[str, float]:
    """‖H′ − H‖/‖H‖ of the summed H, and over all heads taken one by one.

    >>> one = HeadMaps(torch.tensor([[[1.0, 0.0]]]), torch.tensor([[[-3.0, 0.0]]]))
    >>> other = HeadMaps(torch.tensor([[[1.0, 0.0]]]), torch.tensor([[[-1.0, 0.0]]]))
    >>> {key: round(value, 6) for key, value in distances(one, other).items()}  # |-1 + 3| / 3
    {'distance': 0.666667, 'distance_per_head': 0.666667}
    """
    before, after = (HeadMaps(one.v_GED.double(), one.w_GED.double()) for one in (before, after))
    was = before.summed()
    squared = before.squared_norms().sum()
    moved = squared - 2 * before.dot(after).sum() + after.squared_norms().sum()
    tiny = torch.finfo(was.dtype).tiny
    return {
        "distance": float((after.summed() - was).norm() / was.norm().clamp(min=tiny)),
        "distance_per_head": float((moved.clamp(min=0.0) / squared.clamp(min=tiny)).sqrt()),
    }
