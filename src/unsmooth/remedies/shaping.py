"""Attention beside an identity: what shaped attention and Value-SkipInit both are, with or without the way past it."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from unsmooth.remedies.base import Edit
from unsmooth.remedies.block import remedies_of
from unsmooth.remedies.call import Call
from unsmooth.remedies.site import Site
from unsmooth.remedies.weighing import weigh, weighed


def shape_heads(
    heads_BNHE: Tensor,
    values_BNKE: Tensor,
    alpha: Tensor,
    beta: Tensor,
    gamma: Tensor | None = None,
    mean: Tensor | None = None,
) -> Tensor:
    r"""The heads of attention maps that are reweighed beside an identity, :math:`(\alpha I + \beta A - \gamma C)\,V`.

    Sums are in float32 or better, rounded once to the dtype of the heads.

    Args:
        heads_BNHE: AV, what the query heads give.
        values_BNKE: V; query heads k·G to k·G + G−1 read value head k.
        alpha: α, one number or one per query head.
        beta: β, likewise.
        gamma: γ, likewise; None where there is no such term.
        mean: CV, broadcastable to V; None where every token sees all.

    Example:
        >>> heads, values = torch.tensor([5.0, 3.0]).reshape(1, 1, 2, 1), torch.tensor([4.0]).reshape(1, 1, 1, 1)
        >>> one, half = torch.ones(2), torch.full((2,), 0.5)
        >>> shape_heads(heads, values, half, one, torch.tensor([0.0, 1.0])).flatten()
        tensor([7., 1.])
    """
    heads, shared = heads_BNHE.shape[2], values_BNKE.shape[2]
    if heads == shared and heads_BNHE.dtype == values_BNKE.dtype and mean is None:
        return weigh(values_BNKE, alpha, heads_BNHE, beta, less_mean=gamma)

    def by_head(weight: Tensor) -> Tensor:
        return weight.expand(heads).view(shared, heads // shared, 1)

    weights = (by_head(alpha), by_head(beta), None if gamma is None else by_head(gamma))
    mean = None if mean is None else mean.unsqueeze(3)
    out = weighed(values_BNKE.unsqueeze(3), torch.unflatten(heads_BNHE, 2, (shared, -1)), *weights, mean)
    return out.flatten(2, 3).to(heads_BNHE.dtype)


class BesideIdentity(Edit):
    """The heads by learned weights of attention and of an identity, with or without the way past attention."""

    def start(self, site: Site, weights: Mapping[str, float], learn: str, skip: str) -> None:
        """Hold weights by name: one per head, one per layer, or numbers that stay."""
        self.drops_skip = skip == "drop"
        for name, number in weights.items():
            # Not a scalar: FSDP shards parameters, and a scalar has nothing to shard.
            shape = (site.wiring.weights.heads.query,) if learn == "head" else (1,)
            start = torch.full(shape, number, **site.like_weights())
            if learn == "no":
                self.register_buffer(name, start, persistent=False)
            else:
                self.register_parameter(name, nn.Parameter(start))

    @classmethod
    def refusal(cls, site: Site, options: Mapping[str, Any]) -> str | None:
        """Where the way past attention is to be dropped and cannot be."""
        return no_way_past(site, options)

    def places(self) -> tuple[str, ...]:
        """The sum with the stream only where the stream is taken off."""
        return ("on_heads", "on_attention_sum") if self.drops_skip else ("on_heads",)

    def on_attention_sum(self, sum_BND: Tensor, call: Call) -> Tensor:
        """Take off the stream that went past attention."""
        return -call.stream


def no_way_past(site: Site, options: Mapping[str, Any]) -> str | None:
    """Why a block cannot do without the way past its attention, or None where it can or need not."""
    if options.get("skip") != "drop":
        return None
    if site.wiring.style == "parallel":
        return 'it adds attention and MLP at once, so the way past attention is the MLP\'s too; skip="keep" works'
    if (share := _dropped_later(site)) > 0.0:
        what = f"in training it drops {share:g} of what attention gives later, where the way past would be back"
        return f'{what}; without dropout, or with skip="keep", it works'
    weighs = _edit_that(site, "weighs_skip")
    if weighs is not None:
        return f"{weighs} weighs the way past its attention, of which some would be left"
    other = who_dropped_skip(site)
    return None if other is None else f"{other} has dropped the way past its attention already"


def who_dropped_skip(site: Site) -> str | None:
    """A remedy that has dropped the way past the block's attention (it says ``drops_skip = True``)."""
    return _edit_that(site, "drops_skip")


def _dropped_later(site: Site) -> float:
    """The share of attention's branch that a block drops in training after the way past was taken off it."""
    found: Any = 0.0 if site.wiring.dropout is None else operator.attrgetter(site.wiring.dropout)(site.block)
    if isinstance(found, nn.Module):  # dropout has p, stochastic depth drop_prob, and the identity neither
        found = getattr(found, "p", getattr(found, "drop_prob", 0.0))
    return float(found or 0.0)


def _edit_that(site: Site, says: str) -> str | None:
    home = remedies_of(site.block)
    edits: Mapping[str, Edit] = {} if home is None else home.edits()
    return next((name for name, edit in edits.items() if getattr(edit, says, False)), None)
