r"""AttnScale (Wang et al. 2022, arXiv 2203.05962): the part of attention that is not the token mean, made stronger.

.. math:: A \leftarrow \Pi + (1 + \omega_h)(A - \Pi), \qquad \Pi = \tfrac{1}{n}\mathbf{1}\mathbf{1}^\top

with one learned ω per head. The eigenvalue 1 of the token mean stays, every other one becomes (1+ω)μ. No map is formed:
times the values it is :math:`(1+\omega)\,AV - \omega\,\Pi V`, what attention gives, moved by the mean of its values.
The official code (VITA-Group/ViT-Anti-Oversmoothing, attnscale.py) forms the map and does the same; with attention
dropout it drops entries of the changed map, here of the model's own.

Neutral at ``omega=0.0``, where training starts. Causal: Π is the mean over the tokens seen so far, earlier tokens in
the key/value cache counted, and those in a memory of earlier segments; where attention sees a window only, it is still
all of them. Cost: one mean of the values and one interpolation per block; in cached decoding one running sum per value
head is kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from unsmooth.remedies.base import CausalForm, remedy
from unsmooth.remedies.blend import blend, blend_whole
from unsmooth.remedies.call import Call
from unsmooth.remedies.segments import Recalling
from unsmooth.remedies.site import Site
from unsmooth.remedies.token_mean import token_mean
from unsmooth.spec import Range


@remedy
class AttnScale(Recalling):
    """Scale what each head gives away from the mean of its values."""

    name = "attnscale"
    summary = "the part of attention that is not the token mean is scaled, by one learned number per head"
    paper = "Wang et al. 2022, arXiv 2203.05962"
    equation = "A ← Π + (1+ω)(A − Π), Π = 11ᵀ/n"
    neutral: ClassVar[Mapping[str, Any] | None] = {"omega": 0.0}
    causal: ClassVar[CausalForm] = "prefix mean"
    cost = "one mean of the values and one interpolation per block"
    options: ClassVar[Mapping[str, str]] = {
        "omega": "ω, where training starts or for good: -1 leaves the mean alone, 0 attention as it is",
        "learn": "'head' (one ω per head, as in the paper) or 'no'",
    }

    omega: Tensor

    def __init__(
        self, site: Site, *, omega: Annotated[float, Range(-1.0, 10.0)] = 0.0, learn: Literal["head", "no"] = "head"
    ) -> None:
        super().__init__(site)
        start = torch.full((site.wiring.weights.heads.query,), omega, **site.like_weights())
        if learn == "head":
            self.register_parameter("omega", nn.Parameter(start))
        else:
            self.register_buffer("omega", start, persistent=False)

    def on_heads(self, heads_BNHE: Tensor, call: Call) -> Tensor:
        """(1+ω)·AV − ω·ΠV."""
        assert call.values is not None, "noted for every edit of the heads"
        values_BNKE = call.values.to(heads_BNHE.dtype)
        omega_H1 = self.omega.unsqueeze(-1)
        if not call.causal and call.real_BN is None and values_BNKE.shape == heads_BNHE.shape:
            return blend_whole(heads_BNHE, values_BNKE, omega_H1, -omega_H1)
        mean_BNKE = token_mean(values_BNKE, call, self.name, earlier=self.recalled())
        # Query heads k·G to k·G + G−1 read value head k.
        mean_BNHE = mean_BNKE.repeat_interleave(heads_BNHE.shape[2] // mean_BNKE.shape[2], dim=2)
        return blend(heads_BNHE, mean_BNHE, omega_H1, -omega_H1)
