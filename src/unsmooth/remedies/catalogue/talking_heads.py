r"""Talking heads (Shazeer et al. 2020, arXiv 2003.02436), as in CaiT (Touvron et al. 2021, arXiv 2103.17239).

.. math:: \ell_h \leftarrow \sum_g L_{hg}\,\ell_g, \qquad A_h \leftarrow \sum_g W_{hg}\,\mathrm{softmax}(\ell_g) + b_h

Heads mix their logits before the softmax and their maps after it, by two learned matrices that start at the identity.
The official code (facebookresearch/deit, cait_models.py) has a bias with each. That of the logits adds the same to
every key, which no softmax sees, so it is left out here. That of the maps is a part of attention that goes to all keys
alike; keys that a query may not see get none of it.

Mode map: rows of head h sum to :math:`\sum_g W_{hg} + n b_h` for n keys seen, and that is the eigenvalue of the token
mean; the rest has no closed form, as maps of several heads are mixed.

No setting is neutral to the bit, because it is not the host's attention that runs: at the start the model is the plain
one but for rounding. Causal: heads of one token and one key are mixed, and the future stays hidden. Cost: the maps are
formed, in memory of batch · heads · tokens², with two products over heads; on a GPU with up to four heads of 64 (and no
dropout of maps) kernels of our own form none. ``output_attentions=True`` of transformers' eager attention gives the
mixed maps.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - as everywhere

from unsmooth.remedies.base import CausalForm, Edit, remedy
from unsmooth.remedies.call import Call
from unsmooth.remedies.mixed_heads import has_kernels, mixed_by_kernels, mixed_maps
from unsmooth.remedies.mixing import Mix, by_query_head
from unsmooth.remedies.routing import hand_on
from unsmooth.remedies.site import Site


@remedy
class TalkingHeads(Edit):
    """Mix logits and maps over heads."""

    name = "talking_heads"
    summary = "heads mix their logits before the softmax and their maps after it, by learned matrices"
    paper = "Shazeer et al. 2020, arXiv 2003.02436"
    equation = "A = W·softmax(L·logits) + b, L and W over heads, the identity at the start"
    causal: ClassVar[CausalForm] = "masked"
    cost = "attention maps are formed, and two products over heads; on a GPU with few heads one kernel"
    options: ClassVar[Mapping[str, str]] = {
        "bias": "True for b, as in CaiT, or False",
    }

    def __init__(self, site: Site, *, bias: bool = True) -> None:
        super().__init__(site)
        heads, like = site.wiring.weights.heads.query, site.like_weights()
        self.logits = nn.Parameter(torch.eye(heads, **like))
        self.maps = nn.Parameter(torch.eye(heads, **like))
        self.bias = nn.Parameter(torch.zeros(heads, **like)) if bias else None

    @classmethod
    def refusal(cls, site: Site, options: Mapping[str, Any]) -> str | None:
        """One head has nobody to talk to."""
        return "it has one head, which has nobody to talk to" if site.wiring.weights.heads.query == 1 else None

    def on_mixing(self, mix: Mix, call: Call) -> Tensor:
        """By the kernels where they are for it, else with maps that are formed."""
        if has_kernels(mix):
            return mixed_by_kernels(mix, self.maps.unsqueeze(0), before=self.logits, bias=self.bias)
        maps_BHNM = mixed_maps(*mix.logits(), self.logits, self.maps, self.bias)
        maps_BHNM = F.dropout(maps_BHNM.to(mix.value.dtype), mix.dropout)
        hand_on(mix, maps_BHNM)
        return maps_BHNM @ by_query_head(mix.value, maps_BHNM.shape[1])
