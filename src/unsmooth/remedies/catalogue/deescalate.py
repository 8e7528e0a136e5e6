r"""De-escalation (Yu & Zhang, "Why classic Transformers are shallow", arXiv 2312.06182): take the token mean out.

.. math:: Y = (I - \tau\Pi)\,X, \qquad \Pi = \tfrac{1}{n}\mathbf{1}\mathbf{1}^\top

which leaves :math:`t_{sim}(Y) = (1-\tau)^2 s / ((1-\tau)^2 s + 1 - s)` of a similarity s; τ=1 takes all of it. It is
one update of P1's with uniform attention and H = −τI. The paper uses τ=1; where in the block it acts, and whether τ is
learned, is not known, so both are options. A learned τ starts in the range of a fixed one and is free to leave it.

After the residual means after all edits of the branch and after dropout, but for ViT, DINOv2, Whisper, BLOOM and Falcon
of transformers in training, whose dropout of the branch, where they have any, comes later. In a post-norm block a norm
follows that gives every token one size again, so what little a token near the mean has left is blown up; a sequence of
one token is its own mean, and is left alone by default like the first token of a decoder.

Neutral at ``tau=0.0``. Causal: the mean over the tokens seen so far, earlier tokens in the key/value cache counted; at
τ=1 that would make the first token exactly zero, so by default a token that sees only itself is left alone. With
prefix means the closed form above does not hold. Cost: one mean and one subtraction per block; in cached decoding one
vector per block is kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

import torch
from torch import Tensor, nn

from unsmooth.remedies.base import CausalForm, Edit, remedy
from unsmooth.remedies.blend import blend, blend_whole
from unsmooth.remedies.call import Call
from unsmooth.remedies.site import Site
from unsmooth.remedies.token_mean import token_mean
from unsmooth.spec import Range

_Place: TypeAlias = Literal["attention", "residual", "norm", "values"]
_PLACES: Mapping[_Place, str] = {
    "attention": "on_attention",
    "residual": "on_attention_sum",
    "norm": "on_attention_norm",
    "values": "on_values",
}


@remedy
class Deescalate(Edit):
    """Take the token mean, or a part of it, out of a block."""

    name = "deescalate"
    summary = "the mean over tokens is taken out, wholly or in part"
    paper = "Yu & Zhang 2023, arXiv 2312.06182"
    equation = "Y = (I − τΠ)X, Π = 11ᵀ/n"
    neutral: ClassVar[Mapping[str, Any] | None] = {"tau": 0.0}
    causal: ClassVar[CausalForm] = "prefix mean"
    cost = "one mean and one subtraction per block"
    options: ClassVar[Mapping[str, str]] = {
        "tau": "how much of the mean is taken out, 0 to 2; 1 all of it, 2 reflects it",
        "place": "'attention' (its output, before the addition), 'residual' (after the addition), 'norm' (after "
        "attention's norm) or 'values' (before attention mixes them)",
        "learn": "'no', 'layer' (one τ per layer) or 'channel' (one per channel)",
        "first": "a token that sees only itself: 'keep' leaves it alone, 'remove' treats it like any other (at τ=1 it "
        "becomes zero)",
        "prior": "so many tokens of zeros are counted into the mean, which softens it where few tokens are seen",
        "mean": "'seen' (the prefix in a decoder) or 'all' (leaks the future in a decoder)",
    }

    def __init__(
        self,
        site: Site,
        *,
        tau: Annotated[float, Range(0.0, 2.0)] = 1.0,
        place: _Place = "attention",
        learn: Literal["no", "layer", "channel"] = "no",
        first: Literal["keep", "remove"] = "keep",
        prior: Annotated[float, Range(0.0, 1e6)] = 0.0,
        mean: Literal["seen", "all"] = "seen",
    ) -> None:
        super().__init__(site)
        self.place, self.keep_first, self.whole = place, first == "keep", mean == "all"
        # In a parallel block there is no stream between attention and MLP: the addition is the block's.
        self.at_block = place == "residual" and site.wiring.style == "parallel"
        self.prior = prior
        self.fixed: float | None = tau if learn == "no" else None
        if learn != "no":
            channels: tuple[int, ...] = (site.dim,)
            if place == "values":
                heads = site.wiring.weights.heads
                channels = heads.key_value, heads.dim
            # Not a scalar: FSDP shards parameters, and a scalar has nothing to shard.
            shape = channels if learn == "channel" else (1,)
            self.tau = nn.Parameter(torch.full(shape, tau, **site.like_weights()))

    @classmethod
    def leaks(cls, options: Mapping[str, Any]) -> bool:
        """Only where the mean over all tokens is asked for."""
        return options.get("mean") == "all"

    def places(self) -> tuple[str, ...]:
        """The one that was asked for."""
        return ("on_block",) if self.at_block else (_PLACES[self.place],)

    def on_attention(self, branch_BND: Tensor, call: Call) -> Tensor:
        """Edit the branch alone."""
        return self._without_mean(branch_BND, call)

    def on_attention_sum(self, sum_BND: Tensor, call: Call) -> Tensor:
        """What (I − τΠ) takes from the stream after the addition."""
        mean = self._mean(sum_BND, call)
        return -(mean * self.fixed if self.fixed is not None else (self.tau * mean).to(mean.dtype))

    def on_attention_norm(self, normed_BND: Tensor, call: Call) -> Tensor:
        """Edit what the norm gives."""
        return self._without_mean(normed_BND, call)

    def on_values(self, values_BNKE: Tensor, call: Call) -> Tensor:
        """A(I − τΠ)V, which is not (I − τΠ)AV."""
        return self._without_mean(values_BNKE, call)

    def on_block(self, out_BND: Tensor, call: Call) -> Tensor:
        """Edit what the block hands on."""
        return self._without_mean(out_BND, call)

    def _without_mean(self, x: Tensor, call: Call) -> Tensor:
        shift = -self.fixed if self.fixed is not None else -self.tau
        whole = call.real_BN is None and (self.whole or not call.causal)
        if whole and self.prior == 0.0 and x.shape[1] > 1:
            return blend_whole(x, x, 0.0, shift)
        return blend(x, self._mean(x, call), 0.0, shift)

    def _mean(self, x: Tensor, call: Call) -> Tensor:
        key = f"deescalate.{self.place}"
        return token_mean(x, call, key, whole=self.whole, prior=self.prior, keep_alone=self.keep_first)
