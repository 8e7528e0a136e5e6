r"""Mimetic initialisation (Trockman & Kolter 2023, arXiv 2305.09828): attention starts as trained attention looks.

.. math:: W_Q W_K^\top \approx \alpha_1 Z + \beta_1 I, \qquad W_V W_O = \alpha_2 Z - \beta_2 I

with Z normal of variance 1/d, α₁ = β₁ = 0.7 and α₂ = β₂ = 0.4, as two public copies of the authors' code have them. A
head's queries and keys are narrower than the stream, so their product is the nearest of their rank, by singular values.
All else starts as in `truncated_normal`. The paper also starts positions as sinusoids: ``mimetic_sinusoidal``.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from unsmooth.networks.block import Attention
from unsmooth.networks.embedding import Positions, sinusoids
from unsmooth.networks.inits import INITS, parts_of, truncated_normal

QUERY_KEY, VALUE_OUTPUT = 0.7, 0.4


def mimetic(network: nn.Module, generator: torch.Generator) -> None:
    """Queries and keys near the identity, values and output near its negative."""
    truncated_normal(network, generator)
    for module in parts_of(network):
        if isinstance(module, Attention):
            _mimic(module, generator)


def mimetic_sinusoidal(network: nn.Module, generator: torch.Generator) -> None:
    """The same, with learned positions that start as sinusoids."""
    mimetic(network, generator)
    for module in parts_of(network):
        if isinstance(module, Positions) and module.style == "learned":
            module.table.copy_(sinusoids(torch.arange(module.length), module.table.shape[1]))
    grid = getattr(network, "grid_positions", None)  # a ViT's, whose places have two coordinates
    if callable(grid):
        grid()


def _mimic(attention: Attention, generator: torch.Generator) -> None:
    width, head = attention.out.in_features, attention.head_dim
    query, key, value = attention.qkv.weight.chunk(3)
    for start in range(0, width, head):
        left_DE, right_ED = near_identity(QUERY_KEY, QUERY_KEY, width, head, generator=generator)
        query[start : start + head].copy_(left_DE.mT)
        key[start : start + head].copy_(right_ED)
    left_DM, right_MD = near_identity(VALUE_OUTPUT, -VALUE_OUTPUT, width, width, generator=generator)
    value.copy_(left_DM.mT)
    attention.out.weight.copy_(right_MD.mT)


def near_identity(
    noise: float, identity: float, width: int, rank: int, copies: int = 1, generator: torch.Generator | None = None
) -> tuple[Tensor, Tensor]:
    """Two factors of noise·Z + identity·I, or of what is nearest of a rank, in double: no device rounds otherwise.

    Args:
        noise: What Z, normal of variance 1/width, is multiplied by.
        identity: What I is multiplied by.
        width: Of both.
        rank: Columns of the left factor and rows of the right one; at most `width`.
        copies: Matrices, each with a Z of its own, that share the right factor.
        generator: Where Z comes from.

    Returns:
        (copies · width, rank) and (rank, width).

    Example:
        >>> left, right = near_identity(0.0, -0.25, width=3, rank=3)
        >>> (left @ right).diag()
        tensor([-0.2500, -0.2500, -0.2500], dtype=torch.float64)
    """
    drawn = torch.randn(copies * width, width, generator=generator, dtype=torch.float64) / width**0.5
    wanted = noise * drawn + identity * torch.eye(width, dtype=torch.float64).repeat(copies, 1)
    left, values, right = torch.linalg.svd(wanted, full_matrices=False)
    roots = values[:rank].sqrt()
    return left[:, :rank] * roots, roots[:, None] * right[:rank]


INITS.add("mimetic", mimetic)
INITS.add("mimetic_sinusoidal", mimetic_sinusoidal)
