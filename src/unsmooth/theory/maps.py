"""Attention maps and weights with a spectrum one knows: the laboratory's glassware."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def drawn(*shape: int, seed: int) -> Tensor:
    """Standard normal numbers in float64 that depend on the seed alone."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def random_attention(n: int, *, seed: int, logit_std: float = 1.0) -> Tensor:
    """Softmax of independent normal logits (n, n): a complex spectrum, as a rule.

    >>> random_attention(4, seed=0).sum(dim=-1).round(decimals=9)
    tensor([1., 1., 1., 1.], dtype=torch.float64)
    """
    return torch.softmax(logit_std * drawn(n, n, seed=seed), dim=-1)


def causal_attention(n: int, *, seed: int, logit_std: float = 1.0) -> Tensor:
    """The same with a causal mask: the eigenvalues stand on the diagonal, and the first token sees only itself.

    >>> causal_attention(3, seed=0)[0]
    tensor([1., 0., 0.], dtype=torch.float64)
    """
    future = torch.ones(n, n, dtype=torch.bool).triu(1)
    return torch.softmax((logit_std * drawn(n, n, seed=seed)).masked_fill(future, -torch.inf), dim=-1)


def uniform_attention(n: int) -> Tensor:
    """Every token attends to all alike: eigenvalues 1 and, n − 1 times, 0."""
    return torch.full((n, n), 1.0 / n, dtype=torch.float64)


def lazy_attention(n: int, stay: float) -> Tensor:
    """stay·I + (1 − stay)·Π: eigenvalues 1 and, n − 1 times, `stay`."""
    return stay * torch.eye(n, dtype=torch.float64) + (1.0 - stay) * uniform_attention(n)


def cyclic_attention(n: int, *, leak: float = 0.05, step: int = 1) -> Tensor:
    """Each token attends to the one `step` further on a circle, and with weight `leak` to all.

    Eigenvalues 1 and (1 − leak)·exp(2πik·step/n): as complex as attention can be.

    >>> cyclic_attention(3, leak=0.3)[0]
    tensor([0.1000, 0.8000, 0.1000], dtype=torch.float64)
    """
    shift = torch.eye(n, dtype=torch.float64).roll(step, dims=1)
    return (1.0 - leak) * shift + leak * uniform_attention(n)


def two_group_attention(first: int, second: int, *, seed: int, contrast: float = 2.0) -> Tensor:
    """Tokens of two groups that attend across (contrast > 0) or within (contrast < 0): a real, simple spectrum.

    A = D⁻¹S with symmetric S > 0 is similar to a symmetric matrix. Attending across makes the lowest eigenvalue
    negative, with a mode that has one sign on each group.

    >>> round(torch.linalg.eigvals(two_group_attention(5, 3, seed=0)).real.min().item(), 1)
    -0.7
    """
    group = torch.arange(first + second) < first
    across = group.unsqueeze(0) != group.unsqueeze(1)
    logits = 0.3 * drawn(first + second, first + second, seed=seed)
    weights = torch.exp(logits + logits.T + contrast * across)
    return weights / weights.sum(dim=-1, keepdim=True)


def with_eigenvalues(values: Sequence[complex], *, seed: int, skew: float = 0.3) -> Tensor:
    """A real H with these eigenvalues; a + ib with b ≠ 0 stands for the pair a ± ib.

    `skew` sets how far the eigenvectors are from orthogonal.
    """
    blocks = [
        torch.tensor(
            [[value.real, value.imag], [-value.imag, value.real]] if value.imag else [[value.real]], dtype=torch.float64
        )
        for value in map(complex, values)
    ]
    core: Tensor = torch.block_diag(*blocks)  # type: ignore[no-untyped-call]
    noise = drawn(*core.shape, seed=seed + 1) / len(core) ** 0.5
    basis = torch.linalg.qr(drawn(*core.shape, seed=seed)).Q + skew * noise
    h: Tensor = torch.linalg.solve(basis, core @ basis)
    return h
