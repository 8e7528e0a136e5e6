"""The same things the long way, in float64 numpy: whole operators, all eigenvalues."""

from __future__ import annotations

import numpy
import torch
from torch import Tensor

Array = numpy.ndarray


def full_operator(maps: Tensor, products: list[Array], right: Array | None = None) -> Array:
    """(I + Σ H_hᵀ⊗A_h), then Rᵀ⊗I, on the columns of X one under the other."""
    n, d = maps.shape[1], products[0].shape[0]
    operator = numpy.eye(n * d)
    for one, product in zip(maps.double().numpy(), products, strict=True):
        operator = operator + numpy.kron(product.T, one)
    return operator if right is None else numpy.kron(right.T, numpy.eye(n)) @ operator


def head_products(w_v: Tensor, w_o: Tensor) -> list[Array]:
    return [v @ o for v, o in zip(w_v.double().numpy(), w_o.double().numpy(), strict=True)]


def spectrum_distance(found: Array, wanted: Array) -> float:
    """Largest distance when both spectra, with multiplicity, are matched one to one."""
    from scipy.optimize import linear_sum_assignment

    assert found.shape == wanted.shape
    distances = numpy.abs(found[:, None] - wanted[None, :])
    return float(distances[linear_sum_assignment(distances)].max())


def random_maps(heads: int, n: int, seed: int = 0, temperature: float = 1.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    logits = temperature * torch.randn(heads, n, n, generator=generator, dtype=torch.float64)
    return logits.softmax(dim=-1)


def causal_maps(heads: int, n: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(heads, n, n, generator=generator, dtype=torch.float64)
    return logits.masked_fill(torch.ones(n, n).triu(1).bool(), -torch.inf).softmax(dim=-1)


def random_weights(heads: int, d: int, d_h: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    w_v = torch.randn(heads, d, d_h, generator=generator, dtype=torch.float64)
    w_o = torch.randn(heads, d_h, d, generator=generator, dtype=torch.float64)
    return w_v / d**0.5, w_o / d_h**0.5
