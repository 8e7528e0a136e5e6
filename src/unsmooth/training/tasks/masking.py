"""Hiding tokens for a masked language model (Devlin et al. 2019, arXiv 1810.04805), by the keys of the sequences."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from unsmooth import keyed
from unsmooth.training.data.tokenizing import MASK, SPECIAL

_MASKED, _CHANGED = 0.8, 0.9


class Masked(NamedTuple):
    """Sequences with hidden tokens.

    Args:
        inputs: (batch, tokens) ids that the model sees.
        at: (batch, K) int64: places whose tokens it is asked for.
        targets: (batch, K) the tokens that are there.
    """

    inputs: Tensor
    at: Tensor
    targets: Tensor


def places_hidden(tokens: int, share: float) -> int:
    """How many tokens of a sequence are asked for; at least one.

    >>> places_hidden(128, 0.25), places_hidden(3, 0.1)
    (32, 1)
    """
    return max(1, round(share * tokens))


def hide_tokens(ids_BN: Tensor, keys_B: Tensor, *, share: float, vocabulary: int) -> Masked:
    """Hide exactly `share` of every sequence: of these, 80 % become [MASK], 10 % another token, 10 % stay.

    All three are exact in every sequence, up to rounding, as in the collator of Crammed BERT (Geiping & Goldstein 2022,
    arXiv 2212.14034), so shapes are fixed. Other than there, a random token is never special.

    Args:
        ids_BN: Token ids.
        keys_B: A key of `unsmooth.keyed` for each sequence, which alone decides what is hidden in it.
        share: Of all tokens.
        vocabulary: Random tokens are below it, and not special.

    >>> hidden = hide_tokens(torch.arange(5, 25)[None], torch.tensor([7]), share=0.25, vocabulary=30)
    >>> hidden.at.tolist(), hidden.targets.tolist()
    ([[2, 9, 0, 11, 8]], [[7, 14, 5, 16, 13]])
    >>> hidden.inputs[0, hidden.at[0]].tolist()
    [4, 4, 4, 4, 13]
    """
    tokens = ids_BN.shape[1]
    count = places_hidden(tokens, share)
    hashes_BN = keyed.derive(keyed.keys(keys_B, 0), tokens)
    # Two hashes may be equal; with its place behind it none is, and every device sorts alike.
    named_BN = hashes_BN * tokens + torch.arange(tokens, device=ids_BN.device)
    at_BK = named_BN.topk(count, dim=1, largest=False, sorted=True).indices
    targets_BK = ids_BN.gather(1, at_BK)
    others_BK = len(SPECIAL) + keyed.integers(keyed.derive(keyed.keys(keys_B, 1), count), vocabulary - len(SPECIAL))
    # The places are in the order of their hashes, which is any order: the first of them are as good as any.
    rank_K = torch.arange(count, device=ids_BN.device)
    seen_BK = torch.where(rank_K < round(_CHANGED * count), others_BK.to(ids_BN.dtype), targets_BK)
    seen_BK = torch.where(rank_K < round(_MASKED * count), torch.full_like(seen_BK, MASK), seen_BK)
    return Masked(ids_BN.scatter(1, at_BK, seen_BK), at_BK, targets_BK)
