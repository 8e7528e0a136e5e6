"""Random attention to compare with: Markov matrices of a given size and entropy.

Two nulls, because equal entropy does not say how it is spread: `random_markov` has Dirichlet rows, `random_softmax` the
larger entries that a softmax of unstructured logits has at the same entropy. A head above both has more than its
entropy makes it have.
"""

from __future__ import annotations

import json
import math
from functools import cache
from importlib import resources
from typing import Literal

import numpy
import torch
from scipy.optimize import brentq
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


def random_softmax(n: int, entropy: float, generator: torch.Generator | None = None, causal: bool = False) -> Tensor:
    r"""A row-stochastic matrix, the softmax of independent normal logits, of a given mean entropy.

    The scale of the logits, one for all rows, is solved for. Beside `random_markov` of the same entropy its largest
    entries are larger: what attention looks like whose logits have no structure, as they are at initialisation.

    Args:
        n: Tokens, two or more.
        entropy: Mean row entropy over its maximum, in (0, 1); the first row of a causal matrix is left out of the mean.
        generator: Source of randomness; None for torch's own.
        causal: Lower triangular: row i spreads over i keys, and the first row is (1, 0, ...).

    Returns:
        (n, n) in float64.

    Example:
        >>> a = random_softmax(200, 0.5, torch.Generator().manual_seed(0))
        >>> round(float(-torch.xlogy(a, a).sum(dim=1).mean() / torch.tensor(200.0).log()), 3)
        0.5
    """
    _check(n, entropy)
    logits_NN = random_logits(n, generator, causal)
    return (logits_NN * scale_of_logits(logits_NN, entropy)).softmax(dim=-1)


def random_logits(n: int, generator: torch.Generator | None, causal: bool) -> Tensor:
    """Independent standard normal logits (n, n) in float64; of a causal map minus infinity where it does not look."""
    logits_NN = torch.randn(n, n, dtype=torch.float64, generator=generator)
    return logits_NN.masked_fill(torch.ones(n, n, dtype=torch.bool).triu(1), -torch.inf) if causal else logits_NN


def scale_of_logits(logits_NN: Tensor, entropy: float) -> float:
    """What to multiply logits by for this mean entropy of their softmax, over its maximum in each row."""
    keys_N = logits_NN.isfinite().sum(dim=-1)
    most_N = keys_N.clamp_min(2).double().log()

    def too_much(log_scale: float) -> float:
        a_NN = (logits_NN * math.exp(log_scale)).softmax(dim=-1)
        found_N = -torch.xlogy(a_NN, a_NN).sum(dim=-1) / most_N
        return float(found_N[keys_N > 1].mean()) - entropy

    return math.exp(brentq(too_much, -20.0, 20.0, xtol=1e-6))


def random_second_eigenvalue(
    n: int,
    entropy: float,
    causal: bool = False,
    *,
    null: Literal["dirichlet", "softmax"] = "dirichlet",
    quantile: float = 0.5,
) -> float:
    r"""A quantile of \|μ₂\| over random attention of this size and entropy: what a head has by chance.

    Simulated at sizes from 2 to 1,024 and entropies from 0.02 to 0.999, and read off between them as a multiple of what
    is known in closed form. Of bidirectional matrices that is the radius √(n Var), with Var = (1/n)(1 − 1/n)/(nα + 1)
    the variance of one Dirichlet entry, of the disc that the spectrum fills as n grows (the circular law); at the sizes
    of attention maps \|μ₂\| lies above it. A causal matrix has its eigenvalues on the diagonal, where entry i of a
    Dirichlet one is Beta(α_i, (i − 1)α_i): the quantile of the largest after the first is exact.

    Args:
        n: Tokens, two or more.
        entropy: Expected row entropy over its maximum, in (0, 1).
        causal: For causal matrices.
        null: "dirichlet" for `random_markov`, "softmax" for `random_softmax`, of which \|μ₂\| is larger.
        quantile: The median, or what one matrix in twenty exceeds.

    Returns:
        The quantile, the median to about 3 % of it and the other to about 10 %.

    Example:
        >>> round(random_second_eigenvalue(197, 0.92), 2)  # α near 1, radius near 1/√n = 0.071
        0.07
        >>> round(random_second_eigenvalue(197, 0.92, null="softmax", quantile=0.95), 2)
        0.09
    """
    _check(n, entropy)
    if quantile not in (0.5, 0.95):
        raise expected("`quantile` of 0.5 or 0.95", quantile, "0.95: what one random matrix in twenty exceeds")
    if null not in ("dirichlet", "softmax"):
        raise expected('`null` "dirichlet" or "softmax"', repr(null), 'null="softmax"')
    known = _causal_quantile(n, entropy, quantile) if causal else _radius(n, entropy)
    if causal and null == "dirichlet":
        return known
    ratios = simulated()[f"{'causal ' if causal else ''}{null} {quantile}"]
    return min(float(_between(ratios, math.log(n), math.log(entropy / (1.0 - entropy)))) * known, 1.0)


def _radius(n: int, entropy: float) -> float:
    """Radius of the circular law for `random_markov`."""
    alpha = float(_concentration(numpy.array([n]), entropy)[0])
    return math.sqrt((1.0 - 1.0 / n) / (n * alpha + 1.0))


def _causal_quantile(n: int, entropy: float, quantile: float) -> float:
    """Quantile of the largest diagonal entry after the first of a causal `random_markov`."""
    keys = numpy.arange(2, n + 1)
    alphas = _concentration(keys, entropy)
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2.0
        below = float(numpy.prod(betainc(alphas, (keys - 1) * alphas, middle)))
        low, high = (middle, high) if below < quantile else (low, middle)
    return (low + high) / 2.0


SIZES = (2, 3, 4, 6, 8, 16, 32, 64, 128, 256, 512, 1024)
ENTROPIES = (0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 0.999)


@cache
def simulated() -> dict[str, Array]:
    """Quantiles (sizes, entropies) over what is known in closed form, by kind: see benchmarks/random_markov.py."""
    text = resources.files("unsmooth.spectra").joinpath("random_markov.json").read_text()
    return {kind: numpy.array(table) for kind, table in json.loads(text).items()}


def _between(table: Array, log_n: float, logit: float) -> float:
    """Linear in log n and in the logit of the entropy; the last value beyond the ends."""
    logits = numpy.log(numpy.array(ENTROPIES) / (1.0 - numpy.array(ENTROPIES)))
    by_size = [float(numpy.interp(logit, logits, row)) for row in table]
    return float(numpy.interp(log_n, numpy.log(SIZES), by_size))


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
