"""What the laboratory accepts: tokens, row-stochastic attention and weights, all in float64.

Shape suffixes: H heads, N tokens, D dimensions.
"""

from __future__ import annotations

from torch import Tensor

from unsmooth.errors import expected

ROW_SUM_TOLERANCE = 1e-4
_SOFTMAX = "torch.softmax(logits.double(), dim=-1)"


def checked_tokens(x: Tensor) -> Tensor:
    """Tokens (n, d) in float64: at least two, finite, not all zero.

    >>> import torch
    >>> checked_tokens(torch.ones(1, 3))
    Traceback (most recent call last):
    unsmooth.errors.UnsmoothError: Expected at least two tokens but got one. Try a longer sequence: a single token \
is always equal to itself.
    """
    _check_real(x, "tokens x")
    if x.ndim != 2 or x.shape[1] < 1:
        raise expected("tokens x of shape (n, d)", f"shape {tuple(x.shape)}", "x[0] for one sequence of a batch")
    if x.shape[0] < 2:
        raise _one_token()
    if not x.any():
        raise expected("tokens that are not all zero", "only zeros", "torch.randn(n, d)")
    return x.detach().double()


def checked_attention(attention: Tensor) -> Tensor:
    """Attention (heads, n, n) in float64, rows divided by their sum: single precision leaves sums like 1 + 1e-7.

    >>> import torch
    >>> checked_attention(torch.tensor([[2.0, 2.0], [1.0, 0.0]]))
    Traceback (most recent call last):
    unsmooth.errors.UnsmoothError: Expected attention rows that sum to one but got a row that sums to 4. Try \
torch.softmax(logits.double(), dim=-1).
    """
    _check_real(attention, "attention")
    shape = tuple(attention.shape)
    if attention.ndim not in (2, 3) or shape[0] == 0:
        raise expected("attention of shape (n, n) or (heads, n, n)", f"shape {shape}", "attention[0] of a batch")
    if shape[-1] != shape[-2]:
        raise expected(
            "square attention",
            f"shape {shape}",
            "self-attention: across two sequences (cross-attention) no spectrum exists",
        )
    if shape[-1] < 2:
        raise _one_token()
    map_HNN = attention.detach().double()
    map_HNN = map_HNN if map_HNN.ndim == 3 else map_HNN.unsqueeze(0)
    if (map_HNN < 0).any():
        raise expected("attention without negative entries", f"{map_HNN.min().item():.3g}", _SOFTMAX)
    sums_HN1 = map_HNN.sum(dim=-1, keepdim=True)
    worst = sums_HN1.flatten()[(sums_HN1.flatten() - 1.0).abs().argmax()].item()
    if abs(worst - 1.0) > ROW_SUM_TOLERANCE:
        raise expected("attention rows that sum to one", f"a row that sums to {worst:.6g}", _SOFTMAX)
    return map_HNN / sums_HN1


def checked_weights(h: Tensor) -> Tensor:
    """Weights H = W_V W_O (heads, d, d) in float64."""
    _check_real(h, "weights h")
    shape = tuple(h.shape)
    if h.ndim not in (2, 3) or shape[-1] != shape[-2] or 0 in shape:
        raise expected("weights h of shape (d, d) or (heads, d, d)", f"shape {shape}", "h = w_v @ w_o, tokens as rows")
    h_HDD = h.detach().double()
    return h_HDD if h_HDD.ndim == 3 else h_HDD.unsqueeze(0)


def check_heads(map_HNN: Tensor, h_HDD: Tensor) -> None:
    """One H for every attention map."""
    if len(map_HNN) != len(h_HDD):
        raise expected(
            "as many attention maps as weights h",
            f"{len(map_HNN)} and {len(h_HDD)}",
            "attention.expand(heads, -1, -1) for one map that all heads share",
        )


def check_fit(x_ND: Tensor, map_HNN: Tensor, h_HDD: Tensor) -> None:
    """Tokens, attention and weights of the same n and d."""
    n, d = x_ND.shape
    if map_HNN.shape[-1] != n:
        raise expected(f"attention over the {n} tokens of x", f"one over {map_HNN.shape[-1]}", f"shape ({n}, {n})")
    if h_HDD.shape[-1] != d:
        raise expected(f"weights h for the {d} dimensions of x", f"for {h_HDD.shape[-1]}", f"shape ({d}, {d})")


def checked_gain(weight: Tensor | None, d: int) -> Tensor | None:
    """The norm's weight (d,) in float64."""
    if weight is None:
        return None
    _check_real(weight, "norm_weight")
    if tuple(weight.shape) != (d,):
        raise expected(f"norm_weight of shape ({d},)", f"shape {tuple(weight.shape)}", f"torch.ones({d})")
    return weight.detach().double()


def _check_real(value: Tensor, name: str) -> None:
    if not isinstance(value, Tensor):
        raise expected(f"{name} as a tensor", type(value).__name__, "torch.as_tensor(...)")
    if not value.is_floating_point():
        raise expected(f"{name} of real floating type", str(value.dtype), f"{name.split()[-1]}.double()")
    if not value.isfinite().all():
        raise expected(f"finite {name}", "NaN or Inf", f"{name.split()[-1]}.isfinite() to find where it comes from")


def _one_token() -> ValueError:
    return expected("at least two tokens", "one", "a longer sequence: a single token is always equal to itself")
