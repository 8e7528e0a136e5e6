"""The fastest mode besides the token mean, for many heads, from all eigenvalues of attention.

Shape suffixes: G heads, N tokens, K eigenvalues of H, M eigenvalues or Ritz values of attention.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from unsmooth.spectra._lapack import eigenvalues_of

# So many maps at a time stay near the processor, and enough for one call to be worth its while.
CHUNK = 32


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

    def put(self, heads_G: Tensor, found: tuple[Tensor, Tensor, Tensor], route: str) -> None:
        """Fill in some heads with what `largest_product` gave."""
        self.modulus[heads_G], self.token[heads_G], self.feature[heads_G] = found
        for head in heads_G.tolist():
            self.route[head] = route


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
