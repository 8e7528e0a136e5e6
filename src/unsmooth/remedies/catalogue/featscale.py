r"""FeatScale (Wang et al. 2022, arXiv 2203.05962): the token mean of the attention output, and the rest, reweighted.

.. math:: Y = X + s \odot \Pi X + t \odot (I - \Pi) X, \qquad \Pi = \tfrac{1}{n}\mathbf{1}\mathbf{1}^\top

on what attention adds to the stream, with learned s and t for every channel: H·diag(1+s) on the mean, H·diag(1+t) on
the rest. The official block for DeiT (VITA-Group/ViT-Anti-Oversmoothing, featscale.py) adds both terms twice, which
makes it 1+2s and 1+2t; its blocks for CaiT and Swin add them once, as the paper does. ``variant="official"`` is the
one for DeiT.

Neutral at ``dc=0.0, hc=0.0``, where training starts. Causal: the mean over the tokens seen so far, earlier tokens in
the key/value cache counted. Cost: one mean and two additions per block; in cached decoding one vector per block is
kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from unsmooth.remedies.base import CausalForm, Edit, remedy
from unsmooth.remedies.blend import blend, blend_whole
from unsmooth.remedies.call import Call
from unsmooth.remedies.site import Site
from unsmooth.remedies.token_mean import token_mean
from unsmooth.spec import Range


@remedy
class FeatScale(Edit):
    """Reweight the token mean and the rest of what attention adds."""

    name = "featscale"
    summary = "the token mean and the rest of the attention output are reweighted, by learned numbers per channel"
    paper = "Wang et al. 2022, arXiv 2203.05962"
    equation = "Y = X + s⊙ΠX + t⊙(I − Π)X, Π = 11ᵀ/n"
    neutral: ClassVar[Mapping[str, Any] | None] = {"dc": 0.0, "hc": 0.0}
    causal: ClassVar[CausalForm] = "prefix mean"
    cost = "one mean and two additions per block"
    options: ClassVar[Mapping[str, str]] = {
        "dc": "s, the weight of the token mean, where training starts or for good; -1 takes it out",
        "hc": "t, the weight of the rest, where training starts or for good; -1 takes it out",
        "learn": "'channel' (one s and one t per channel, as in the paper) or 'no'",
        "variant": "'paper' adds the two terms once, 'official' twice, as the authors' block for DeiT does",
    }

    dc: Tensor
    hc: Tensor

    def __init__(
        self,
        site: Site,
        *,
        dc: Annotated[float, Range(-1.0, 10.0)] = 0.0,
        hc: Annotated[float, Range(-1.0, 10.0)] = 0.0,
        learn: Literal["channel", "no"] = "channel",
        variant: Literal["paper", "official"] = "paper",
    ) -> None:
        super().__init__(site)
        self.times = 1 if variant == "paper" else 2
        for name, start in {"dc": dc, "hc": hc}.items():
            start_D = torch.full((site.dim,), start, **site.like_weights())
            if learn == "channel":
                self.register_parameter(name, nn.Parameter(start_D))
            else:
                self.register_buffer(name, start_D, persistent=False)

    def on_attention(self, branch_BND: Tensor, call: Call) -> Tensor:
        """Add s⊙m + t⊙(x − m)."""
        gain_D, shift_D = self.times * self.hc, self.times * (self.dc - self.hc)
        if not call.causal and call.real_BN is None:
            return blend_whole(branch_BND, branch_BND, gain_D, shift_D)
        return blend(branch_BND, token_mean(branch_BND, call, self.name), gain_D, shift_D)
