r"""Laplacian heads (Zhang & Papyan 2026, arXiv 2602.09297): some heads take what attention gives away from the values.

.. math:: X + \sum_{h \in \mathcal{A}} A_h X H_h + \sum_{h \in \mathcal{L}} (I - A_h) X H_h

If tokens are the nodes of a graph with weights :math:`A_h`, then :math:`I - A_h` is its Laplacian. The eigenvalues of a
chosen head's attention become 0 for what all tokens share and 1−μ for the rest: it changes differences between tokens
and leaves their mean to the other heads. The authors find that tokens become more alike, and models better.

How many heads, and which, their abstract does not say, and no code was at hand: `heads` says so, and half of them is a
default of ours.

Neutral at ``heads=[]``. Causal: a token sees itself once more, and nothing else. Cost: one subtraction per block.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from unsmooth.remedies.base import CausalForm, Edit, remedy
from unsmooth.remedies.call import Call
from unsmooth.remedies.layers import Layers, choose_layers
from unsmooth.remedies.site import Site


@remedy
class Laplacian(Edit):
    """Give V − AV instead of AV in chosen heads."""

    name = "laplacian"
    summary = "chosen heads give their values less what attention makes of them"
    paper = "Zhang & Papyan 2026, arXiv 2602.09297"
    equation = "out_h = (I − A_h)V_h for chosen heads"
    neutral: ClassVar[Mapping[str, Any] | None] = {"heads": []}
    causal: ClassVar[CausalForm] = "unchanged"
    cost = "one subtraction per block"
    options: ClassVar[Mapping[str, str]] = {
        "heads": "which query heads: indices, or a share (0.5 is the first half, -0.5 the last); None for all of them, "
        "[] for none",
    }

    chosen_H: Tensor

    def __init__(self, site: Site, *, heads: Layers = 0.5) -> None:
        super().__init__(site)
        count = site.wiring.weights.heads.query
        none = isinstance(heads, list) and not heads
        indices = [] if none else choose_layers(heads, count, "heads")
        chosen_H = torch.zeros(count, dtype=torch.bool, device=site.like_weights()["device"])
        chosen_H[indices] = True
        self.register_buffer("chosen_H", chosen_H, persistent=False)

    def on_heads(self, heads_BNHE: Tensor, call: Call) -> Tensor:
        """Subtract from the values, where chosen."""
        assert call.values is not None, "noted for every edit of the heads"
        return without_attention(heads_BNHE, call.values, self.chosen_H)


def without_attention(heads_BNHE: Tensor, values_BNKE: Tensor, chosen_H: Tensor) -> Tensor:
    """V − AV of the chosen heads, AV of the others.

    Args:
        heads_BNHE: AV, what the query heads give.
        values_BNKE: V; heads h·G to h·G + G−1 read value head h.
        chosen_H: True for the chosen heads.

    Example:
        >>> heads, values = torch.tensor([5.0, 3.0]), torch.tensor([1.0])
        >>> chosen = torch.tensor([False, True])
        >>> without_attention(heads.reshape(1, 1, 2, 1), values.reshape(1, 1, 1, 1), chosen).flatten()
        tensor([ 5., -2.])
    """
    grouped = torch.unflatten(heads_BNHE, 2, (values_BNKE.shape[2], -1))
    chosen_KG1 = chosen_H.view(values_BNKE.shape[2], -1, 1)
    return torch.where(chosen_KG1, values_BNKE.unsqueeze(3) - grouped, grouped).flatten(2, 3)
