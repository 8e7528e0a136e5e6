r"""GFSA (Choi, Wi et al. 2024, arXiv 2312.04234): attention becomes a graph filter, a polynomial of its own map.

.. math:: A \leftarrow w_0 I + w_1 A + w_K \big[A + (K-1)(A^2 - A)\big]

per head; the bracket stands for :math:`A^K`, whose first-order expansion it is. Eigenvalues go from 1 to
:math:`w_0 + w_1 + w_K` for the token mean and from μ to :math:`w_0 + w_1\mu + w_K(\mu + (K-1)(\mu^2 - \mu))` for the
rest. No map is formed: :math:`A^2 V` is :math:`A(AV)`, the host's own attention a second time.

Training starts from :math:`w_0 = 0, w_1 = 1, w_K = 0`, plain attention. The authors' code (jeongwhanchoi/GFSA) says
that :math:`w_0` and :math:`w_1` may be learned or fixed; all of it fixes them (:math:`w_1 = 1`, and :math:`w_0` by a
setting), which is ``variant="official"``; here they are learned by default. It has K = 4 in its vision code and for
BERT, 3 to 10 in its other scripts. The equation is the same in both variants. With dropout that code squares the map
of which entries were dropped; here each of the two runs drops its own.

Neutral at ``w0=0.0, start=0.0``, the default. Causal: a product of causal maps is causal; in cached decoding
what attention gave at earlier tokens, AV of every query head, is kept with their keys and values. Refused where a
memory of earlier segments is seen (Transformer-XL), of which only keys and values are known. Cost: attention runs
twice. ``output_attentions=True`` of transformers' eager attention gives A, of which the polynomial is not formed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from unsmooth.errors import expected
from unsmooth.remedies.base import CausalForm, Edit, remedy
from unsmooth.remedies.call import Call
from unsmooth.remedies.mixing import Mix, by_query_head
from unsmooth.remedies.segments import remembers_segments
from unsmooth.remedies.site import Site
from unsmooth.spec import Range


@remedy
class Gfsa(Edit):
    """Mix by a polynomial of the map."""

    name = "gfsa"
    summary = "attention's map A becomes a polynomial of itself, of which A² is computed as A(AV)"
    paper = "Choi, Wi et al. 2024, arXiv 2312.04234"
    equation = "A ← w₀I + w₁A + w_K[A + (K−1)(A² − A)]"
    neutral: ClassVar[Mapping[str, Any] | None] = {"w0": 0.0, "start": 0.0}
    causal: ClassVar[CausalForm] = "masked"
    cost = "attention runs twice; in cached decoding one more cache, of as many heads as there are queries"
    options: ClassVar[Mapping[str, str]] = {
        "order": "K, 2 to 100: the power of A that the last term stands for",
        "w0": "w₀, -1 to 1: the weight of each token itself, for good or where training starts",
        "start": "w_K, -1 to 1, where training starts",
        "variant": "'paper' learns w₀, w₁ and w_K of every head, 'official' w_K only, as all of the authors' code does",
    }

    def __init__(
        self,
        site: Site,
        *,
        order: Annotated[int, Range(2, 100)] = 4,
        w0: Annotated[float, Range(-1.0, 1.0)] = 0.0,
        start: Annotated[float, Range(-1.0, 1.0)] = 0.0,
        variant: Literal["paper", "official"] = "paper",
    ) -> None:
        super().__init__(site)
        self.order_K = order
        self.identity = w0
        heads, like = site.wiring.weights.heads.query, site.like_weights()
        self.w_K = nn.Parameter(torch.full((heads,), start, **like))
        self.w_0 = nn.Parameter(torch.full((heads,), self.identity, **like)) if variant == "paper" else None
        self.w_1 = nn.Parameter(torch.ones(heads, **like)) if variant == "paper" else None

    @classmethod
    def refusal(cls, site: Site, options: Mapping[str, Any]) -> str | None:
        """Where attention sees tokens at which it is not known what it gave."""
        return remembers_segments(site)

    def on_mixing(self, mix: Mix, call: Call) -> Tensor:
        """w₀V + (w₁ + (2−K)w_K)·AV + (K−1)w_K·A(AV)."""
        once = mix()
        twice = mix(value=_of_every_key(once, mix, call))
        kept = (1.0 if self.w_1 is None else self.w_1) + (2 - self.order_K) * self.w_K
        mixed = torch.addcmul(_by_head(kept, once) * once, _by_head((self.order_K - 1) * self.w_K, once), twice)
        if self.w_0 is None and self.identity == 0.0:
            return mixed
        own = by_query_head(mix.value[:, :, -once.shape[2] :], once.shape[1]).to(once.dtype)
        return mixed + own * (self.identity if self.w_0 is None else _by_head(self.w_0, once))

    def report(self) -> Mapping[str, float]:
        """Mean weights over heads."""
        weights = {"w0": self.w_0, "w1": self.w_1, "wK": self.w_K}
        return {f"mean {name}": float(weight.detach().mean()) for name, weight in weights.items() if weight is not None}


def _by_head(weight_H: Tensor, like: Tensor) -> Tensor:
    return weight_H.to(like.dtype).view(-1, 1, 1)


def _of_every_key(once_BHNE: Tensor, mix: Mix, call: Call) -> Tensor:
    """AV at every token that is a key: of the newest from this call, of earlier ones from those that made them."""
    if call.real_BN is not None:  # no weight goes to padding, but no weight times NaN is NaN
        once_BHNE = torch.where(call.real_BN[:, None, :, None], once_BHNE, once_BHNE.new_zeros(()))
    earlier = mix.key.shape[2] - once_BHNE.shape[2]
    if call.memory is None:
        if earlier:
            got = f"{earlier} keys of tokens that are not in this call"
            raise expected("attention over the tokens of a call, or a key/value cache", got, "a model without a memory")
        return once_BHNE
    past_BHME = call.memory.read("gfsa.mixed")
    if past_BHME is not None:  # of which a window may have forgotten the first
        once_BHNE = torch.cat([past_BHME[:, :, past_BHME.shape[2] - earlier :], once_BHNE], dim=2)
    call.memory.write("gfsa.mixed", once_BHNE)
    return once_BHNE
