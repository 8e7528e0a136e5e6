r"""FeatScale (Wang et al. 2022, arXiv 2203.05962): the token mean and the rest of the attention output, each reweighted.

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
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from unsmooth.remedies.base import CausalForm, Edit, choice, remedy, within
from unsmooth.remedies.call import Call
from unsmooth.remedies.site import Site
from unsmooth.remedies.token_mean import token_mean


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
        "learn": "'channel' (one s and one t per channel, as in the paper), 'layer' (one of each) or 'no'",
        "variant": "'paper' adds the two terms once, 'official' twice, as the authors' block for DeiT does",
    }

    def __init__(
        self, site: Site, *, dc: float = 0.0, hc: float = 0.0, learn: str = "channel", variant: str = "paper"
    ) -> None:
        super().__init__(site)
        choice("learn", learn, ["channel", "layer", "no"])
        choice("variant", variant, ["paper", "official"])
        dc, hc = within("dc", dc, -1.0, 10.0), within("hc", hc, -1.0, 10.0)
        self.times = 1 if variant == "paper" else 2
        self.fixed: tuple[float, float] | None = (dc, hc) if learn == "no" else None
        if learn != "no":
            shape = (site.dim,) if learn == "channel" else ()
            self.dc = nn.Parameter(torch.full(shape, dc, **site.like_weights()))
            self.hc = nn.Parameter(torch.full(shape, hc, **site.like_weights()))

    def on_attention(self, branch_BND: Tensor, call: Call) -> Tensor:
        """x + s⊙m + t⊙(x − m)."""
        mean = token_mean(branch_BND, call, self.name)
        dc, hc = self.fixed if self.fixed is not None else (self.dc, self.hc)
        return reweight(branch_BND, mean, dc, hc, self.times)


def reweight(x: Tensor, mean: Tensor, dc: Tensor | float, hc: Tensor | float, times: int = 1) -> Tensor:
    """Add `times` · (s⊙m + t⊙(x − m)) to x, in its dtype.

    Args:
        x: (batch, tokens, dim).
        mean: Its token mean m, broadcastable to it.
        dc: s, a number or one per channel.
        hc: t, likewise.
        times: How often the two terms are added.

    Example:
        >>> x, mean = torch.tensor([[[4.0], [2.0]]]), torch.tensor([[[3.0]]])
        >>> reweight(x, mean, dc=-1.0, hc=0.5).flatten().tolist()  # no mean left: 1.5·(4 − 3), 1.5·(2 − 3)
        [1.5, -1.5]
        >>> reweight(x, mean, dc=0.0, hc=0.5, times=2).flatten().tolist()  # 3 + 2·(4 − 3), 3 + 2·(2 − 3)
        [5.0, 1.0]
    """
    if not isinstance(dc, Tensor) or not isinstance(hc, Tensor):
        return torch.add(x, mean, alpha=times * (dc - hc)).add(x, alpha=times * hc)
    # t alone is rounded to the dtype of x, not 1+t, in which a small t would vanish.
    shifted = torch.addcmul(x, mean, (dc - hc).to(x.dtype), value=times)
    return torch.addcmul(shifted, x, hc.to(x.dtype), value=times)
