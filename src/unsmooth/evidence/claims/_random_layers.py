"""Attention maps and weights drawn at random, of several kinds: what the claims about the idealised layer run on.

Every kind is a function of a generator, so that one seed gives one layer of each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import ceil, log
from typing import TypeAlias

import numpy as np
import torch
from numpy.random import Generator
from numpy.typing import NDArray
from torch import Tensor

from unsmooth.theory.maps import (
    causal_attention,
    cyclic_attention,
    drawn,
    lazy_attention,
    random_attention,
    two_group_attention,
    with_eigenvalues,
)

Draw: TypeAlias = Callable[[Generator], Tensor]

# What is left of all that does not dominate, beside what does, when a run counts as settled; 1e-4 is what `outcome`
# asks for, the rest is room for tokens that happen to start with little of the dominating mode.
SETTLED = 1e-10


def generator(*key: int) -> Generator:
    """Numbers that depend on the key alone.

    >>> new_seed(generator(1, 2)) == new_seed(generator(1, 2))
    True
    """
    return np.random.default_rng(list(key))


def new_seed(random: Generator) -> int:
    """A seed for what takes one."""
    return int(random.integers(2**31))


def tokens(random: Generator, n: int, d: int) -> Tensor:
    """Independent normal tokens (n, d)."""
    return drawn(n, d, seed=new_seed(random))


def basis(random: Generator, d: int) -> Tensor:
    """A random orthogonal matrix (d, d)."""
    turn: Tensor = torch.linalg.qr(tokens(random, d, d)).Q
    return turn


def doubly_stochastic(random: Generator) -> Tensor:
    """A mixture of permutations and their transposes: symmetric, every column sums to one too."""
    n = _size(random)
    mixed = torch.zeros(n, n, dtype=torch.float64)
    for weight in random.dirichlet(np.ones(4)):
        permutation = torch.eye(n, dtype=torch.float64)[torch.from_numpy(random.permutation(n))]
        mixed += weight * (permutation + permutation.T) / 2.0
    return 0.9 * mixed + 0.1 / n


def softmax_map(random: Generator) -> Tensor:
    """Flat or peaked softmax of normal logits."""
    return random_attention(_size(random), seed=new_seed(random), logit_std=float(random.uniform(0.3, 3.0)))


def two_groups(random: Generator) -> Tensor:
    """A real spectrum; groups that attend within or across."""
    first, second = (int(size) for size in random.integers(2, 5, size=2))
    contrast = float(random.uniform(-2.0, 3.0))
    return two_group_attention(first, second, seed=new_seed(random), contrast=contrast)


def near_cyclic(random: Generator) -> Tensor:
    """A complex spectrum near the unit circle."""
    return cyclic_attention(_size(random), leak=float(random.uniform(0.02, 0.3)))


def causal(random: Generator) -> Tensor:
    """Lower triangular; short, as many diagonal entries lie too close together to tell their modes apart."""
    n, logit_std = int(random.integers(3, 6)), float(random.uniform(0.3, 3.0))
    return causal_attention(n, seed=new_seed(random), logit_std=logit_std)


def lazy(random: Generator) -> Tensor:
    """Uniform attention, half of the time with a share that stays: eigenvalues that tie exactly."""
    return lazy_attention(_size(random), float(random.choice([0.0, random.uniform(0.05, 0.9)])))


ATTENTION: Mapping[str, Draw] = {
    "softmax": softmax_map,
    "doubly stochastic": doubly_stochastic,
    "two groups": two_groups,
    "near-cyclic": near_cyclic,
    "causal": causal,
    "averaging": lazy,
}


def real_spectrum(low: float, high: float, *, skew: float) -> Draw:
    """H with independent uniform eigenvalues; `skew` 0 for a symmetric one."""

    def draw(random: Generator) -> Tensor:
        values = random.uniform(low, high, size=int(random.integers(3, 7)))
        return with_eigenvalues([complex(value) for value in values], seed=new_seed(random), skew=skew)

    return draw


def complex_pairs(random: Generator) -> Tensor:
    """H with two complex pairs and a real eigenvalue."""
    pairs = [complex(random.uniform(-0.8, 0.6), random.uniform(0.2, 1.0)) for _ in range(2)]
    return with_eigenvalues([*pairs, complex(random.uniform(-0.5, 0.3))], seed=new_seed(random))


def with_zeros(random: Generator) -> Tensor:
    """H whose eigenvalues are exactly zero, one to four times, and negative otherwise."""
    values = [0.0] * int(random.integers(1, 5)) + list(random.uniform(-1.0, -0.1, size=2))
    return with_eigenvalues([complex(value) for value in values], seed=new_seed(random))


def general(random: Generator) -> Tensor:
    """H of independent normal entries."""
    d, size = int(random.integers(3, 7)), float(random.uniform(0.3, 1.5))
    return tokens(random, d, d) * (size / float(np.sqrt(d)))


WEIGHTS: Mapping[str, Draw] = {
    "positive": real_spectrum(0.02, 1.0, skew=0.3),
    "negative": real_spectrum(-1.0, -0.2, skew=0.3),
    "symmetric": real_spectrum(-2.0, 1.0, skew=0.0),
    "complex pairs": complex_pairs,
    "exact zeros": with_zeros,
    "general": general,
}


def condition(matrix: Tensor) -> float:
    """Condition of the eigenvectors: 1 for a normal matrix, endless for one that is not diagonalisable."""
    array: NDArray[np.float64] = matrix.numpy()
    if np.allclose(array, array.T, rtol=0.0, atol=1e-14):
        return 1.0
    return float(np.linalg.cond(np.linalg.eig(array)[1]))


def layers_to_settle(rate: float, conditions: float, least: int = 20) -> int | None:
    """After how many layers everything but the dominating modes is below `SETTLED`; None where it never is.

    Args:
        rate: log of the largest modulus over the next one, per layer.
        conditions: Product of the conditions of the eigenvectors: how much more of the others there may be at first.
        least: At least so many.

    Example:
        >>> layers_to_settle(log(10.0), 1.0, least=1)
        10
    """
    if rate <= 0.0:
        return None
    return max(least, ceil((log(conditions) - log(SETTLED)) / rate - 1e-9))


def _size(random: Generator) -> int:
    return int(random.integers(4, 9))
