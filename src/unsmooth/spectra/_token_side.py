"""The fastest mode besides the token mean, for many heads: by the diagonal, by Ritz values, or by all eigenvalues.

Shape suffixes: G heads, N tokens, K eigenvalues of H, M eigenvalues or Ritz values of attention.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from unsmooth.spectra._krylov import Krylov, arnoldi, extend, start_vector
from unsmooth.spectra._lapack import eigenvalues_of, matrix_vector
from unsmooth.spectra.verdict import verdict_codes

# Products with attention before a first look, and before a second at what that left in doubt.
STAGES = (24, 48)
# Tokens up to which all eigenvalues cost no more than an iteration would.
FEW = 64
# So many maps at a time stay near the processor, and enough for one call to be worth its while.
CHUNK = 16
# Of a Ritz value's own residual: how far from an eigenvalue it is taken to be where attention is not normal.
CAUTION = 1.5
ROUNDING = 1e-3


def in_chunks(heads_G: Tensor) -> tuple[Tensor, ...]:
    """Some heads at a time; none for none."""
    return torch.split(heads_G, CHUNK) if len(heads_G) else ()


@dataclass
class RestSide:
    """Largest |1 + μλ| over μ besides the mean's, with the μ and the λ that have it; all (G,) on the CPU."""

    modulus: Tensor
    token: Tensor
    feature: Tensor
    route: list[str]

    @classmethod
    def empty(cls, count: int) -> RestSide:
        """To be filled in."""
        complex_G = torch.zeros(count, dtype=torch.complex128)
        return cls(torch.zeros(count, dtype=torch.float64), complex_G, complex_G.clone(), [""] * count)

    def put(self, where_G: Tensor, token_GM: Tensor, feature_GK: Tensor, route: str) -> None:
        """Fill in some heads from all their μ and λ."""
        modulus, token, feature = largest_product(token_GM, feature_GK)
        self.modulus[where_G], self.token[where_G], self.feature[where_G] = modulus, token, feature
        for position in where_G.tolist():
            self.route[position] = route


def largest_product(token_GM: Tensor, feature_GK: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Largest |1 + μλ| over all pairs, with its μ and λ.

    For |1 + μλ| convex in μ alone and in λ alone no pair may be left out: with both complex the disc rule fails.
    """
    token, feature = token_GM.to(torch.complex64), feature_GK.to(torch.complex64)
    moduli_GMK = (1.0 + token[:, :, None] * feature[:, None, :]).abs()
    best_GM, which_GM = moduli_GMK.max(dim=2)
    row_G1 = best_GM.argmax(dim=1, keepdim=True)
    mu_G = token_GM.gather(1, row_G1)[:, 0]
    lambda_G = feature_GK.gather(1, which_GM.gather(1, row_G1))[:, 0]
    return (1.0 + mu_G * lambda_G).abs(), mu_G, lambda_G


def dense_token_eigenvalues(maps_GNN: Tensor, normalised: bool) -> Tensor:
    """All eigenvalues of attention besides the mean's (G, n − 1), float64."""
    values_GN = eigenvalues_of(maps_GNN if normalised else maps_GNN - maps_GNN.mean(dim=1, keepdim=True))
    # Without the mean's part a zero stands where the eigenvalue 1 of rows that sum to one was.
    drop_G1 = (values_GN - (1.0 if normalised else 0.0)).abs().argmin(dim=1, keepdim=True)
    keep = torch.ones_like(values_GN, dtype=torch.bool).scatter_(1, drop_G1, False)
    return values_GN[keep].reshape(len(values_GN), -1)


def causal_token_eigenvalues(maps_GNN: Tensor) -> Tensor:
    """The diagonal of lower triangular attention without its largest entry (G, n − 1)."""
    diagonal = maps_GNN.diagonal(dim1=1, dim2=2).to("cpu", torch.float64)
    return diagonal.sort(dim=1, descending=True).values[:, 1:].to(torch.complex128)


def fast_rest(
    rest: RestSide, maps_GNN: Tensor, features_GK: Tensor, mean_G: Tensor, floor: float, heads_G: Tensor
) -> Tensor:
    """Fill `rest` for the heads that Ritz values settle; return those that need all eigenvalues."""
    left = []
    start_N = start_vector(maps_GNN.shape[1], maps_GNN.new_zeros((), dtype=torch.float32))
    for some_G in in_chunks(heads_G):
        maps = maps_GNN[some_G.to(maps_GNN.device)].float()
        krylov = Krylov(start_N.expand(len(maps), 1, -1), start_N.new_zeros(len(maps), 1, 0))
        for steps in STAGES:
            krylov = extend(partial(_centred, maps), krylov, steps)
            doubtful = _fill(rest, krylov, features_GK[some_G], mean_G[some_G], floor, some_G)
            some_G, krylov, maps = some_G[doubtful], krylov[doubtful], maps[doubtful.to(maps.device)]
            if len(some_G) == 0:
                break
        left.append(some_G)
    return torch.cat(left) if left else heads_G[:0]


def _fill(rest: RestSide, krylov: Krylov, features_GK: Tensor, mean_G: Tensor, floor: float, heads_G: Tensor) -> Tensor:
    """Enter what Ritz values say, and return which heads they leave in doubt (G,)."""
    ritz_GM = krylov.ritz_values()
    rest.put(heads_G, ritz_GM, features_GK, "ritz")
    reach_G, size_G = features_GK.abs().amax(dim=1), ritz_GM.abs().amax(dim=1)
    rest_G = rest.modulus[heads_G]
    # An estimate wrong by all of its size changes few verdicts; only for those is it worth asking how wrong it is.
    doubtful = ~_settled(mean_G, rest_G, reach_G * size_G, floor)
    if floor == 0.0:
        # Where the space was exhausted the rest of it is rounding, whose Ritz values near 0 only a floor would hide.
        doubtful |= krylov.hessenberg.diagonal(-1, 1, 2).amin(dim=1).cpu() < 1e-4 * size_G
    if bool(doubtful.any()):
        residual_G, _ = krylov[doubtful].ritz_residuals(rest.token[heads_G[doubtful]])
        error_G = reach_G[doubtful] * (CAUTION * residual_G + ROUNDING * size_G[doubtful])
        settled = _settled(mean_G[doubtful], rest_G[doubtful], error_G, floor)
        doubtful[doubtful.clone()] = ~settled
    return doubtful


def ritz_token_eigenvalues(maps_GNN: Tensor) -> tuple[Tensor, Tensor]:
    """Ritz values (G, M), and whether both the outermost and the leftmost have settled to 1 % (G,)."""
    if maps_GNN.shape[1] <= FEW:
        return maps_GNN.new_zeros(len(maps_GNN), 1).cpu(), torch.zeros(len(maps_GNN), dtype=torch.bool)
    start_N = start_vector(maps_GNN.shape[1], maps_GNN.new_zeros((), dtype=torch.float32))
    maps = maps_GNN.float()
    krylov = arnoldi(lambda x: _centred(maps, x), start_N.expand(len(maps), -1), STAGES[-1])
    values_GM = krylov.ritz_values()
    settled_G = torch.ones(len(maps), dtype=torch.bool)
    for which_G in (values_GM.abs().argmax(dim=1), values_GM.real.argmin(dim=1)):
        value_G = values_GM.gather(1, which_G[:, None])[:, 0]
        settled_G &= CAUTION * krylov.ritz_residuals(value_G)[0] <= 0.01 * value_G.abs()
    return values_GM, settled_G


def _centred(maps_GNN: Tensor, x_GN: Tensor) -> Tensor:
    """(I − Π) A x: on vectors of mean zero its eigenvalues are A's besides the mean's."""
    y_GN = matrix_vector(maps_GNN, x_GN)
    return y_GN - y_GN.mean(dim=-1, keepdim=True)


def _settled(mean_G: Tensor, rest_G: Tensor, error_G: Tensor, floor: float) -> Tensor:
    """Whether the verdict is the same at both ends of what the rest may be; it only ever moves one way between."""
    low = verdict_codes(mean_G, (rest_G - error_G).clamp_min(floor))
    return low == verdict_codes(mean_G, (rest_G + error_G).clamp_min(floor))
