"""Cosines of some pairs of tokens: all of them where they are few, else a spread-out draw that a seed decides.

Shape suffixes: B sequences, N tokens, P pairs, D dimensions.
"""

from __future__ import annotations

import torch
from torch import Tensor

from unsmooth.functional._tokens import Tokens
from unsmooth.keyed import keys, uniform

# Numbers gathered at once: the vectors of all pairs together would be many times the tokens.
_GATHERED = 2**21
# So many products cost a CPU less than gathering the two vectors of one pair.
_PRODUCTS = 64


def sampled_cosines(tokens: Tokens, pairs: int, seed: int) -> tuple[Tensor, Tensor]:
    """Cosines of up to `pairs` pairs i < j of each sequence, and how many of them there are.

    The n(n − 1)/2 pairs are counted row by row and cut into `pairs` stretches as equal as can be, and one is drawn from
    each. So no pair comes twice, and with no more pairs than asked for all of them come. What is drawn depends on the
    seed and the number of tokens alone: not on the batch, nor on where padding is.

    Returns:
        Cosines (batch, pairs) in the working type, and the number (batch,) of those in front that count. A sequence
        without a pair has one cosine, its token's with itself. Zero tokens have cosine 0.
    """
    if (pairs, seed) not in tokens.sampled:
        tokens.sampled[pairs, seed] = _draw(tokens, pairs, seed)
    return tokens.sampled[pairs, seed]


def _draw(tokens: Tokens, pairs: int, seed: int) -> tuple[Tensor, Tensor]:
    count_B = tokens.count_B.double()
    total_B = (count_B * (count_B - 1.0) / 2.0).clamp_min(1.0)
    drawn_B = total_B.clamp_max(float(pairs))
    longest = tokens.input_BND.shape[1]
    slots = min(pairs, max(longest * (longest - 1) // 2, 1))
    place_P = torch.arange(slots, device=count_B.device)
    within_P = uniform(keys(seed, place_P)).double()
    length_B1 = (total_B / drawn_B).unsqueeze(-1)
    start_BP, end_BP = (place_P * length_B1).floor(), ((place_P + 1) * length_B1).floor()
    pair_BP = start_BP + (within_P * (end_BP - start_BP)).floor()
    first_BP, second_BP = _tokens_of_pair(pair_BP.clamp_max_(total_B.unsqueeze(-1) - 1.0), count_B.unsqueeze(-1))
    if tokens.mask_BN is not None:
        real_first_BN = (~tokens.mask_BN).to(torch.uint8).argsort(dim=1, stable=True)
        first_BP, second_BP = real_first_BN.gather(1, first_BP), real_first_BN.gather(1, second_BP)
    return _cosines(tokens, first_BP, second_BP), drawn_B.long()


def _tokens_of_pair(pair_BP: Tensor, count_B1: Tensor) -> tuple[Tensor, Tensor]:
    """The pair of that number among (0, 1), (0, 2), …, (0, n − 1), (1, 2), …; (0, 0) where there is one token."""
    wide = 2.0 * count_B1 - 1.0
    row = ((wide - (wide.square() - 8.0 * pair_BP).clamp_min(0.0).sqrt()) / 2.0).floor()

    def start(row: Tensor) -> Tensor:
        return row * (wide - row) / 2.0

    # The root may be rounded across the edge of a row.
    row = torch.where(pair_BP < start(row), row - 1.0, row)
    row = torch.where(pair_BP >= start(row + 1.0), row + 1.0, row)
    last = (count_B1 - 1.0).clamp_min(0.0)
    row = row.minimum(last).clamp_min(0.0)
    column = (pair_BP - start(row) + row + 1.0).minimum(last)
    return row.long(), column.long()


def _cosines(tokens: Tokens, first_BP: Tensor, second_BP: Tensor) -> Tensor:
    unit_BND = tokens.exact_BND * tokens.inverse_norms_BN.unsqueeze(-1)
    batch, slots = first_BP.shape
    if batch and unit_BND.device.type == "cpu" and unit_BND.shape[1] ** 2 <= _PRODUCTS * slots:
        # In float64, which autocast leaves alone.
        every = (unit_ND @ unit_ND.mT for unit_ND in unit_BND)
        picked = [products[i, j] for products, i, j in zip(every, first_BP, second_BP, strict=True)]
        return torch.stack(picked).to(tokens.dtype)
    step = max(1, _GATHERED // max(1, batch * tokens.dim))
    parts = []
    for start in range(0, slots, step):
        index = (each[:, start : start + step, None].expand(-1, -1, tokens.dim) for each in (first_BP, second_BP))
        one, other = (unit_BND.gather(1, each) for each in index)
        parts.append((one * other).sum(dim=-1))
    return torch.cat(parts, dim=1).to(tokens.dtype)
