r"""The tokens that a token may see, for remedies that compare it with each of them.

In an encoder those are all real tokens; in a decoder the real ones up to and including the token itself, of the same
packed sequence, with those in the key/value cache. Comparing goes through torch's own attention, which forms no map
where it has a kernel that need not:

.. math:: S = \mathrm{softmax}(\hat x \hat x^\top / T), \qquad \hat x_i = x_i / \lVert x_i \rVert
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - as everywhere

from unsmooth.remedies.call import Call
from unsmooth.remedies.likeness import has_kernels, mean_by_likeness

# Padding belongs to no sequence.
_PADDING = -1


@dataclass(frozen=True)
class Seen:
    """What the newest tokens of a call may see.

    Args:
        tokens_BMD: Every token in sight, the newest ones last.
        mask: True where a query sees a key, broadcastable to (batch, 1, queries, keys); None where `causal` says it
            all.
        causal: Whether a token sees only itself and those before it, where there is no mask.
    """

    tokens_BMD: Tensor
    mask: Tensor | None
    causal: bool


def seen_tokens(x_BND: Tensor, call: Call, key: str, *, whole: bool = False) -> Seen:
    """The tokens that each of `x_BND` may see; keeps them for later tokens where there is a key/value cache.

    Args:
        x_BND: The newest tokens.
        call: The block call they belong to.
        key: The name under which they are kept.
        whole: Let them see all tokens of this call although the model is causal, so that the future leaks.

    Example:
        >>> x = torch.ones(1, 3, 2)
        >>> real = torch.tensor([[False, True, True]])
        >>> seen_tokens(x, Call(x, True, real, None, None, {}), "x").mask.int()  # padding sees padding
        tensor([[[[1, 0, 0],
                  [0, 1, 0],
                  [0, 1, 1]]]], dtype=torch.int32)
    """
    if not call.causal or whole:
        return Seen(x_BND, None if call.real_BN is None else call.real_BN[:, None, None], False)
    if call.memory is None and call.real_BN is None and call.starts_BN is None:
        return Seen(x_BND, None, True)
    sequence_BN, tokens_BMD = _sequences(x_BND, call), x_BND
    sequence_BM = sequence_BN
    if call.memory is not None:
        earlier, earlier_sequence = call.memory.read(f"{key}.tokens"), call.memory.read(f"{key}.sequence")
        if earlier is not None and earlier_sequence is not None:
            tokens_BMD = torch.cat([earlier, x_BND], dim=1)
            # The newest tokens go on with the last sequence there was.
            last_B1 = earlier_sequence.amax(dim=1, keepdim=True).clamp(min=0)
            sequence_BN = torch.where(sequence_BN == _PADDING, _PADDING, sequence_BN + last_B1)
            sequence_BM = torch.cat([earlier_sequence, sequence_BN], dim=1)
        call.memory.write(f"{key}.tokens", tokens_BMD)
        call.memory.write(f"{key}.sequence", sequence_BM)
        if call.memory.past == 0 and call.real_BN is None and call.starts_BN is None:
            return Seen(tokens_BMD, None, True)
    new, total = sequence_BN.shape[1], sequence_BM.shape[1]
    before_NM = torch.ones(new, total, dtype=torch.bool, device=x_BND.device).tril(total - new)
    return Seen(tokens_BMD, (before_NM & (sequence_BN[:, :, None] == sequence_BM[:, None]))[:, None], False)


def _sequences(x_BND: Tensor, call: Call) -> Tensor:
    """Which packed sequence each token belongs to, from 0."""
    if call.starts_BN is None:
        sequence_BN = torch.zeros(x_BND.shape[:2], dtype=torch.long, device=x_BND.device)
    else:
        sequence_BN = call.starts_BN.long().cumsum(dim=1)
    return sequence_BN if call.real_BN is None else sequence_BN.masked_fill(~call.real_BN, _PADDING)


def average_by_likeness(x_BND: Tensor, values_BMD: Tensor, seen: Seen, temperature: float) -> Tensor:
    """S·values: for each token the mean of the values it may see, those of like tokens counting more.

    Args:
        x_BND: The newest tokens.
        values_BMD: One vector for each token of `seen`.
        seen: What `seen_tokens` gave.
        temperature: T; the larger it is, the less likeness counts.

    Example:
        >>> x = torch.tensor([[[1.0, 0.0], [0.0, 1.0]]])
        >>> seen = Seen(x, None, False)
        >>> average_by_likeness(x, x, seen, 1.0)  # e/(e + 1) of itself, 1/(e + 1) of the other
        tensor([[[0.7311, 0.2689],
                 [0.2689, 0.7311]]])
    """
    whole = seen.tokens_BMD is x_BND and seen.mask is None and not seen.causal
    if whole and values_BMD is x_BND and has_kernels(x_BND):
        return mean_by_likeness(x_BND, temperature)
    likeness = at_length_one(x_BND)
    keys = likeness if seen.tokens_BMD is x_BND else at_length_one(seen.tokens_BMD)
    return _attend(likeness, keys, values_BMD, seen.mask, seen.causal, temperature)


def likeness_sums(x_BND: Tensor, seen: Seen, temperature: float) -> Tensor:
    r"""What the rows of S were divided by, :math:`Z_i = \sum_j \exp(\hat x_i \cdot \hat x_j / T)`, (batch, tokens, 1).

    Torch's attention does not tell. A key of zeros, whose weight before the division is exp(0) = 1, has weight 1/(1+Z)
    after it.

    Example:
        >>> x = torch.tensor([[[1.0, 0.0], [0.0, 1.0]]])
        >>> likeness_sums(x, Seen(x, None, False), 1.0).flatten()  # e + 1
        tensor([3.7183, 3.7183])
    """
    likeness = at_length_one(x_BND)
    keys = F.pad(likeness, (0, 0, 0, 1))
    flags = F.pad(torch.zeros_like(likeness), (0, 0, 0, 1), value=1.0)
    mask = None if seen.mask is None else F.pad(seen.mask, (0, 1), value=True)
    weight = _attend(likeness, keys, flags, mask, False, temperature)[..., :1]
    return 1.0 / weight - 1.0


def at_length_one(x: Tensor) -> Tensor:
    """Tokens divided by their lengths; those of zeros, which have no direction, stay zeros and get no gradient.

    Not by torch's `normalize`: the smallest length it allows is zero in float16, where it makes NaN of zeros, and their
    gradient is 1e12 times what comes in.

    >>> at_length_one(torch.tensor([[3.0, 4.0], [0.0, 0.0]], dtype=torch.half))
    tensor([[0.6001, 0.7998],
            [0.0000, 0.0000]], dtype=torch.float16)
    """
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.promote_types(x.dtype, torch.float32))
    return (x / torch.where(length > 0, length, torch.inf)).to(x.dtype)


def _attend(
    queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, causal: bool, temperature: float
) -> Tensor:
    q, k, v = (part.unsqueeze(1) for part in (queries, keys, values))  # one head
    return F.scaled_dot_product_attention(q, k, v, mask, is_causal=causal, scale=1.0 / temperature).squeeze(1)
