r"""Talking heads (Shazeer et al. 2020, arXiv 2003.02436), as in CaiT (Touvron et al. 2021, arXiv 2103.17239).

.. math:: \ell_h \leftarrow \sum_g L_{hg}\,\ell_g, \qquad A_h \leftarrow \sum_g W_{hg}\,\mathrm{softmax}(\ell_g) + b_h

Heads mix their logits before the softmax and their maps after it, by two learned matrices that start at the identity.
The official code (facebookresearch/deit, cait_models.py) has a bias with each. That of the logits adds the same to
every key, which no softmax sees, so it is left out here. That of the maps is a part of attention that goes to all keys
alike; keys that a query may not see get none of it.

Mode map: rows of head h sum to :math:`\sum_g W_{hg} + n b_h` for n keys seen, and that is the eigenvalue of the token
mean; the rest has no closed form, as maps of several heads are mixed.

No setting is neutral to the bit, because maps are formed where the host may not form them: at the start the model is
the plain one but for rounding. Causal: heads of one token and one key are mixed, and the future stays hidden. Cost:
the maps are formed, in memory of batch · heads · tokens², with two products over heads.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - as everywhere

from unsmooth.errors import expected
from unsmooth.remedies.base import CausalForm, Edit, remedy
from unsmooth.remedies.call import Call
from unsmooth.remedies.mixing import Mix, by_query_head
from unsmooth.remedies.site import Site


@remedy
class TalkingHeads(Edit):
    """Mix logits and maps over heads."""

    name = "talking_heads"
    summary = "heads mix their logits before the softmax and their maps after it, by learned matrices"
    paper = "Shazeer et al. 2020, arXiv 2003.02436"
    equation = "A = W·softmax(L·logits) + b, L and W over heads, the identity at the start"
    causal: ClassVar[CausalForm] = "masked"
    cost = "attention maps are formed, and two products over heads"
    options: ClassVar[Mapping[str, str]] = {
        "bias": "True for b, as in CaiT, or False",
    }

    def __init__(self, site: Site, *, bias: bool = True) -> None:
        super().__init__(site)
        if not isinstance(bias, bool):
            raise expected("bias as True or False", repr(bias), "bias=True")
        heads, like = site.wiring.heads.query, site.like_weights()
        self.logits = nn.Parameter(torch.eye(heads, **like))
        self.maps = nn.Parameter(torch.eye(heads, **like))
        self.bias = nn.Parameter(torch.zeros(heads, **like)) if bias else None

    @classmethod
    def refusal(cls, site: Site, options: Mapping[str, Any]) -> str | None:
        """One head has nobody to talk to."""
        return "it has one head, which has nobody to talk to" if site.wiring.heads.query == 1 else None

    def on_mixing(self, mix: Mix, call: Call) -> Tensor:
        """Form the maps, mixed before and after the softmax."""
        logits_BHNM, seen = mix.logits()
        logits_BHNM = over_heads(self.logits, logits_BHNM)
        if seen is not None:  # not -inf, of which a row that sees nothing would make NaN
            logits_BHNM = logits_BHNM.masked_fill(~seen, torch.finfo(logits_BHNM.dtype).min)
        exact = torch.promote_types(logits_BHNM.dtype, torch.float32)
        maps_BHNM = over_heads(self.maps, logits_BHNM.softmax(dim=-1, dtype=exact))
        if self.bias is not None:
            maps_BHNM = maps_BHNM + self.bias.to(exact).view(-1, 1, 1)
        if seen is not None:
            maps_BHNM = maps_BHNM.masked_fill(~seen, 0.0)
        maps_BHNM = F.dropout(maps_BHNM.to(mix.value.dtype), mix.dropout)
        return maps_BHNM @ by_query_head(mix.value, maps_BHNM.shape[1])


def over_heads(weight_HG: Tensor, x_BGNM: Tensor) -> Tensor:
    """Every head the weighted sum of all.

    >>> over_heads(torch.tensor([[1.0, 2.0], [0.0, 1.0]]), torch.tensor([3.0, 4.0]).view(1, 2, 1, 1)).flatten()
    tensor([11.,  4.])
    """
    return torch.einsum("hg,bgnm->bhnm", weight_HG.to(x_BGNM.dtype), x_BGNM)
