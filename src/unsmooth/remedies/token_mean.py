r"""The mean over the tokens that a token may see: the one tool that all remedies share, and where they would leak.

In an encoder that is the mean over real tokens. In a decoder it is the mean over real tokens up to and including the
token itself, with those in the key/value cache counted:

.. math:: m_i = \frac{1}{|S_i|} \sum_{j \in S_i} x_j, \qquad S_i = \{j \le i,\ j \text{ real, in the same sequence}\}
"""

from __future__ import annotations

import torch
from torch import Tensor

from unsmooth.remedies.call import Call


def token_mean(
    x: Tensor,
    call: Call,
    key: str,
    *,
    whole: bool = False,
    prior: float = 0.0,
    keep_alone: bool = False,
    earlier: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """Mean of `x` (batch, tokens, ...) over the tokens each token may see, broadcastable to `x`, in its dtype.

    Sums are in float32 or better.

    Args:
        x: One vector, or several, per token.
        call: The block call it belongs to.
        key: The name under which the running sum is kept where there is a key/value cache.
        whole: Average over all tokens although the model is causal, so that the future leaks.
        prior: So many more tokens of zeros are counted, which softens the mean where few tokens are seen.
        keep_alone: Return zeros for tokens that see only themselves, whose mean is the token itself.
        earlier: Tokens before those of the call that all of them see, and no cache knows: their sum (batch, 1, ...) and
            how many they are (batch, 1).

    Example:
        >>> x = torch.tensor([[[2.0], [4.0], [9.0]]])
        >>> seen = Call(x, causal=True, real_BN=None, starts_BN=None, memory=None, shared={})
        >>> token_mean(x, seen, "x").flatten().tolist()
        [2.0, 3.0, 5.0]
        >>> token_mean(x, seen, "x", keep_alone=True).flatten().tolist()
        [0.0, 3.0, 5.0]
        >>> token_mean(x, seen, "x", earlier=(torch.tensor([[[10.0]]]), torch.tensor([[2.0]]))).flatten().tolist()
        [4.0, 4.0, 5.0]
        >>> padded = Call(x, False, torch.tensor([[True, True, False]]), None, None, {})
        >>> token_mean(x, padded, "x").flatten().tolist()
        [3.0]
    """
    if call.causal and not whole:
        total, count = _running(x, call, key)
        if earlier is not None:
            total, count = total + earlier[0], count + earlier[1]
    elif call.real_BN is None:
        if keep_alone and x.shape[1] == 1:
            return torch.zeros_like(x)
        if prior == 0.0:
            return x.mean(dim=1, keepdim=True, dtype=_exact(x)).to(x.dtype)
        total, count = x.sum(dim=1, keepdim=True, dtype=_exact(x)), _full(x, x.shape[1])
    else:
        total = _real(x, call.real_BN).sum(dim=1, keepdim=True)
        count = call.real_BN.sum(dim=1, keepdim=True)
    count = _like(count.to(total.dtype), total)
    mean = total / (count + prior).clamp(min=1.0)
    if keep_alone:
        mean = mean * (count > 1.0)
    return mean.to(x.dtype)


def token_spread(x_BND: Tensor, call: Call, key: str, *, keep_alone: bool = False) -> tuple[Tensor, Tensor]:
    r"""How far each token is from the mean of the tokens it may see, and how far those are on average.

    .. math:: c_i = x_i - m_i, \qquad v_i = \frac{1}{|S_i|} \sum_{j \in S_i} \|x_j - m_i\|^2

    A token that comes to n−1 others at a distance of ‖c‖ from the new mean adds ‖c‖²·n/(n−1) to the sum of squares
    (Welford), so that nothing cancels and what earlier tokens added never changes.

    Args:
        x_BND: The tokens.
        call: The block call they belong to.
        key: The name under which running sums are kept where there is a key/value cache.
        keep_alone: For tokens that see only themselves, measure from zero instead of from themselves.

    Returns:
        c (batch, tokens, dim) and v, broadcastable to (batch, tokens, 1), both in float32 or better.

    Example:
        >>> x = torch.tensor([[[2.0], [4.0], [9.0]]])
        >>> away, spread = token_spread(x, Call(x, True, None, None, None, {}), "x")
        >>> away.flatten().tolist(), spread.flatten().tolist()  # of 2; of 2 and 4; of all three
        ([0.0, 1.0, 4.0], [0.0, 1.0, 8.666666984558105])
    """
    x = x_BND.to(_exact(x_BND))
    if not call.causal:
        away = x - token_mean(x, call, key, keep_alone=keep_alone)
        return away, token_mean(away.square().sum(dim=-1, keepdim=True), call, key)
    total, count_BN = _running(x, call, key)
    count_BN1 = count_BN.clamp(min=1.0).unsqueeze(-1)
    first_BN1 = count_BN1 <= 1.0
    away = x - total / count_BN1
    if keep_alone:
        away = torch.where(first_BN1, x, away)
    square = away.square().sum(dim=-1, keepdim=True)
    adds = torch.where(first_BN1, 0.0, square * count_BN1 / (count_BN1 - 1.0).clamp(min=1.0))
    spread = token_mean(adds, call, f"{key}.spread")
    return away, torch.where(first_BN1, square, spread) if keep_alone else spread


def _running(x: Tensor, call: Call, key: str) -> tuple[Tensor, Tensor]:
    """Sum and number of real tokens up to each one, earlier tokens from the cache counted."""
    real_BN = call.real_BN if call.real_BN is not None else torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
    total = _real(x, call.real_BN).cumsum(dim=1)
    count_BN = real_BN.to(total.dtype).cumsum(dim=1)
    if call.starts_BN is not None:
        total, count_BN = _since_start(total, call.starts_BN), _since_start(count_BN, call.starts_BN)
    if call.memory is not None:
        earlier, seen_B1 = call.memory.read(f"{key}.sum"), call.memory.read(f"{key}.count")
        if earlier is not None and seen_B1 is not None:
            total, count_BN = total + _until_start(earlier, call), count_BN + _until_start(seen_B1, call)
        call.memory.write(f"{key}.sum", total[:, -1:])
        call.memory.write(f"{key}.count", count_BN[:, -1:])
    return total, count_BN


def _since_start(running: Tensor, starts_BN: Tensor) -> Tensor:
    """Take away what had been summed up before the packed sequence a token is in."""
    before = torch.cat([torch.zeros_like(running[:, :1]), running[:, :-1]], dim=1)
    place_N = torch.arange(starts_BN.shape[1], device=starts_BN.device)
    start_BN = (place_N * starts_BN).cummax(dim=1).values
    return running - before.gather(1, _like(start_BN, running).expand(running.shape))


def _until_start(earlier: Tensor, call: Call) -> Tensor:
    """What earlier calls summed up, for tokens before which no other sequence has begun in this one."""
    if call.starts_BN is None:
        return earlier
    return earlier * _like(~call.starts_BN.cummax(dim=1).values, earlier)


def _exact(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)


def _real(x: Tensor, real_BN: Tensor | None) -> Tensor:
    """In float32 or better, with padding as zero even where it is NaN."""
    x = x.to(_exact(x))
    return x if real_BN is None else torch.where(_like(real_BN, x), x, x.new_zeros(()))


def _like(per_token_BN: Tensor, x: Tensor) -> Tensor:
    return per_token_BN.reshape(*per_token_BN.shape, *(1,) * (x.ndim - 2))


def _full(x: Tensor, number: int) -> Tensor:
    return torch.full((1, 1), float(number), device=x.device)
