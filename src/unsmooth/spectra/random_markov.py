"""Random attention to compare with: Markov matrices of a given size and entropy."""

from __future__ import annotations

import math

import numpy
import torch
from scipy.special import betainc, digamma
from torch import Tensor

from unsmooth.errors import expected

Array = numpy.ndarray[tuple[int, ...], numpy.dtype[numpy.float64]]


def random_markov(n: int, entropy: float, generator: torch.Generator | None = None, causal: bool = False) -> Tensor:
    r"""A row-stochastic matrix with independent Dirichlet(α) rows of a given expected entropy.

    The expected entropy of a symmetric Dirichlet over m keys is ψ(mα + 1) − ψ(α + 1), with ψ the digamma function,
    which is solved for α at `entropy` · log m; a causal matrix has its own α in every row.

    Args:
        n: Tokens, two or more.
        entropy: Expected row entropy over its maximum, in (0, 1).
        generator: Source of randomness; None for torch's own.
        causal: Lower triangular: row i spreads over i keys, and the first row is (1, 0, ...).

    Returns:
        (n, n) in float64.

    Example:
        >>> a = random_markov(200, 0.5, torch.Generator().manual_seed(0))
        >>> bool(torch.allclose(a.sum(dim=1), torch.ones(200, dtype=torch.float64)))
        True
        >>> round(float(-torch.xlogy(a, a).sum(dim=1).mean() / torch.tensor(200.0).log()), 1)
        0.5
    """
    _check(n, entropy)
    source = numpy.random.default_rng(int(torch.randint(2**62, (1,), generator=generator)))
    keys = numpy.arange(1, n + 1) if causal else numpy.full(n, n)
    alpha_N1 = _concentration(keys, entropy)[:, None]
    # Gamma(α) = Gamma(α + 1) · U^(1/α), in logarithms: for small α every draw itself would underflow to zero.
    logs_NN = numpy.log(source.standard_gamma(alpha_N1 + 1.0, (n, n))) - source.exponential(size=(n, n)) / alpha_N1
    logs_NN[numpy.arange(n)[None, :] >= keys[:, None]] = -numpy.inf
    return torch.from_numpy(logs_NN).softmax(dim=-1)


def random_second_eigenvalue(n: int, entropy: float, causal: bool = False) -> float:
    r"""\|μ₂\| to expect of `random_markov`: what attention of this size and entropy has by chance.

    Independent rows obey a circular law: besides the eigenvalue 1, the spectrum fills a disc of radius √(n Var) with
    Var = (1/n)(1 − 1/n)/(nα + 1), the variance of one entry. A causal matrix has its eigenvalues on the diagonal,
    where entry i is Beta(α_i, (i − 1)α_i): the expected largest of them after the first, by quadrature.

    Args:
        n: Tokens, two or more.
        entropy: Expected row entropy over its maximum, in (0, 1).
        causal: For causal matrices.

    Returns:
        The estimate; for bidirectional matrices it is the limit of large n.

    Example:
        >>> round(random_second_eigenvalue(197, 0.92), 3)  # α near 1: the radius is near 1/√n = 0.071
        0.071
    """
    _check(n, entropy)
    if not causal:
        alpha = float(_concentration(numpy.array([n]), entropy)[0])
        return math.sqrt((1.0 - 1.0 / n) / (n * alpha + 1.0))
    keys = numpy.arange(2, n + 1)
    alphas = _concentration(keys, entropy)
    # E max = ∫ 1 − Π_i P(entry i <= x) dx over [0, 1].
    nodes, weights = numpy.polynomial.legendre.leggauss(400)
    points = (nodes[:, None] + 1.0) / 2.0
    below = numpy.prod(betainc(alphas, (keys - 1) * alphas, points), axis=1)
    return float((weights / 2.0 * (1.0 - below)).sum())


def _concentration(keys: Array | numpy.ndarray, entropy: float) -> Array:
    """α for every number of keys, by bisection on log α; 1 where there is one key and nothing to choose."""
    wanted = entropy * numpy.log(keys)
    low, high = numpy.full(len(keys), -40.0), numpy.full(len(keys), 40.0)
    for _ in range(80):
        middle = (low + high) / 2.0
        alpha = numpy.exp(middle)
        too_small = digamma(keys * alpha + 1.0) - digamma(alpha + 1.0) < wanted
        low, high = numpy.where(too_small, middle, low), numpy.where(too_small, high, middle)
    return numpy.where(keys > 1, numpy.exp((low + high) / 2.0), 1.0)


def _check(n: int, entropy: float) -> None:
    if n < 2:
        raise expected("two tokens or more", n, "n=197")
    if not 0.0 < entropy < 1.0:
        raise expected("an entropy between 0 and 1", entropy, "0.5: half of the largest possible, log n")
