"""Some tokens of a long sequence, spread evenly, in place of all of them."""

from __future__ import annotations

import torch

from unsmooth.functional._tokens import Tokens


def thinned(tokens: Tokens, most: int) -> Tokens:
    """At most so many real tokens of each sequence, each from the middle of one of as many equal stretches.

    Which they are depends on the number of real tokens alone, so every layer keeps the same.

    >>> thinned(Tokens(torch.arange(6.0).view(1, 6, 1)), 3).values_BND.flatten()
    tensor([1., 3., 5.])
    """
    width = tokens.input_BND.shape[1]
    if width <= most:
        return tokens
    place_K = torch.arange(most, device=tokens.input_BND.device)
    count_B1 = tokens.count_B.double().unsqueeze(-1)
    kept_B1 = count_B1.clamp_max(float(most))
    index_BK = ((place_K + 0.5) * count_B1 / kept_B1.clamp_min(1.0)).long().clamp_max(width - 1)
    real_BK = place_K < kept_B1
    if tokens.mask_BN is not None:
        real_first_BN = (~tokens.mask_BN).to(torch.uint8).argsort(dim=1, stable=True)
        index_BK = real_first_BN.gather(1, index_BK)
    vectors = tokens.input_BND.gather(1, index_BK.unsqueeze(-1).expand(-1, -1, tokens.dim))
    return Tokens(vectors, real_BK)
