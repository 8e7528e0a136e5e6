"""Where the sign of the spectrum says less than one would like: many heads, and weights far from normal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from numpy.random import Generator
from torch import Tensor

from unsmooth.evidence.claims._random_layers import basis, generator, new_seed, tokens
from unsmooth.theory import iterate, modes, random_attention, two_group_attention

HEADS = (2, 4, 8)
FEEDS = (0.0, 1.0, 2.0, 4.0)
LAYERS, EARLY = 48, 12
ALONE = "one of the opposed heads alone"


def fed(turn_DD: Tensor, values: Tensor, feed: float) -> Tensor:
    """H with these eigenvalues, in which every direction also feeds the next with weight `feed`: far from normal.

    >>> fed(torch.eye(2), torch.tensor([-1.0, -0.5]), 3.0)
    tensor([[-1.0000,  3.0000],
            [ 0.0000, -0.5000]])
    """
    steps = torch.diag(torch.ones(len(values) - 1, dtype=values.dtype), 1)
    return turn_DD.T @ (torch.diag(values) + feed * steps) @ turn_DD


def random_heads(random: Generator, heads: int) -> tuple[Tensor, Tensor]:
    """Maps (heads, 6, 6) and weights (heads, 3, 3), each head with positive eigenvalues in a basis of its own."""
    maps = torch.stack([random_attention(6, seed=new_seed(random), logit_std=3.0) for _ in range(heads)])
    bases = torch.stack([tokens(random, 3, 3) for _ in range(heads)])
    values = torch.from_numpy(random.uniform(0.02, 0.3, size=(heads, 3)))
    return maps, torch.linalg.solve(bases, values.unsqueeze(-1) * bases)


def opposed_heads(random: Generator) -> tuple[Tensor, Tensor]:
    """Two heads with positive eigenvalues that work against each other on the mean only.

    The first attends within two groups and has H = D + N, with N feeding each direction into the next; the second
    attends across and has D' − Nᵀ. On equal tokens N − Nᵀ only turns; on the difference of the groups, which the second
    map negates, the two add up to the symmetric N + Nᵀ, which grows.
    """
    maps = [two_group_attention(3, 3, seed=new_seed(random), contrast=contrast) for contrast in (-4.0, 4.0)]
    turn, values = basis(random, 4), torch.from_numpy(random.uniform(0.02, 0.3, size=(2, 4)))
    return torch.stack(maps), torch.stack([fed(turn, values[0], 1.0), fed(turn, values[1], -1.0).T])


def count_heads(seeds: Sequence[int], draws: int) -> dict[str, list[int]]:
    """By kind: in how many draws the mean does not dominate although every head's spectrum is positive, of so many."""
    found = {**{f"{heads} random heads": [0, 0] for heads in HEADS}, "2 opposed heads": [0, 0], ALONE: [0, 0]}
    for random in (generator(seed, 4, index) for seed in seeds for index in range(draws)):
        for heads in HEADS:
            _count(found[f"{heads} random heads"], *random_heads(random, heads))
        maps, weights = opposed_heads(random)
        _count(found["2 opposed heads"], maps, weights)
        for one, h in zip(maps, weights, strict=True):
            _count(found[ALONE], one, h)
    return found


def _count(counts: list[int], maps: Tensor, weights: Tensor) -> None:
    counts[0] += not modes(maps, weights).mean_dominates
    counts[1] += 1


def count_far_from_normal(seeds: Sequence[int], draws: int) -> dict[str, Any]:
    """Spectra in [−1, 0) by how strongly directions feed each other: t_sim after 12 layers against the input's.

    Returns:
        "higher": [in how many draws it is higher, of so many] by feed; "curve": mean t_sim by layer, by feed.
    """
    higher = {f"{feed:g}": [0, 0] for feed in FEEDS}
    curves = {f"{feed:g}": torch.zeros(LAYERS + 1, dtype=torch.float64) for feed in FEEDS}
    for random in (generator(seed, 5, index) for seed in seeds for index in range(draws)):
        attention = random_attention(12, seed=new_seed(random), logit_std=float(random.uniform(0.3, 3.0)))
        turn, values = basis(random, 8), torch.from_numpy(random.uniform(-1.0, -0.02, size=8))
        x = tokens(random, 12, 8)
        for feed in FEEDS:
            similarity = iterate(x, attention, fed(turn, values, feed), depth=LAYERS).token_similarity
            higher[f"{feed:g}"][0] += bool(similarity[EARLY] > similarity[0])
            higher[f"{feed:g}"][1] += 1
            curves[f"{feed:g}"] += similarity / (len(seeds) * draws)
    return {"higher": higher, "curve": {feed: curve.tolist() for feed, curve in curves.items()}}
