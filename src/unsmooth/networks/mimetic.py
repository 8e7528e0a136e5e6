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
        left_DE, right_ED = _factors(QUERY_KEY, 1.0, width, head, generator)
        query[start : start + head].copy_(left_DE.mT)
        key[start : start + head].copy_(right_ED)
    left_DM, right_MD = _factors(VALUE_OUTPUT, -1.0, width, width, generator)
    value.copy_(left_DM.mT)
    attention.out.weight.copy_(right_MD.mT)


def _factors(size: float, sign: float, width: int, rank: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Two factors (d, rank) and (rank, d) of size·(Z ± I), in double so that no device rounds otherwise."""
    noise = torch.randn(width, width, generator=generator, dtype=torch.float64) / width**0.5
    wanted = size * noise + sign * size * torch.eye(width, dtype=torch.float64)
    left, values, right = torch.linalg.svd(wanted)
    roots = values[:rank].sqrt()
    return left[:, :rank] * roots, roots[:, None] * right[:rank]


INITS.add("mimetic", mimetic)
INITS.add("mimetic_sinusoidal", mimetic_sinusoidal)
