r"""AttnScale (Wang et al. 2022, arXiv 2203.05962): the part of attention that is not the token mean, made stronger.

.. math:: A \leftarrow \Pi + (1 + \omega_h)(A - \Pi), \qquad \Pi = \tfrac{1}{n}\mathbf{1}\mathbf{1}^\top

with one learned ω per head. The eigenvalue 1 of the token mean stays, every other one becomes (1+ω)μ. No map is formed:
times the values it is :math:`(1+\omega)\,AV - \omega\,\Pi V`, an edit of what attention gives by the mean of the values.
The official code (VITA-Group/ViT-Anti-Oversmoothing) forms the map and does the same; with attention dropout it drops
entries of the changed map, here of the model's own.

Neutral at ``omega=0.0``, where training starts. Causal: Π is the mean over the tokens seen so far, earlier tokens in
the key/value cache counted; where attention sees a window only, it is still all of them. Cost: one mean of the values
and one interpolation per block; in cached decoding one running sum per value head is kept.
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
class AttnScale(Edit):
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
        "learn": "'head' (one ω per head, as in the paper), 'layer' (one per layer) or 'no'",
    }

    def __init__(self, site: Site, *, omega: float = 0.0, learn: str = "head") -> None:
        super().__init__(site)
        choice("learn", learn, ["head", "layer", "no"])
        omega = within("omega", omega, -1.0, 10.0)
        self.fixed: float | None = omega if learn == "no" else None
        if learn != "no":
            shape = (site.wiring.heads.query,) if learn == "head" else ()
            self.omega = nn.Parameter(torch.full(shape, omega, **site.like_weights()))

    def on_heads(self, heads_BNHE: Tensor, call: Call) -> Tensor:
        """(1+ω)·AV − ω·ΠV."""
        assert call.values is not None, "noted for every edit of the heads"
        mean_BNKE = token_mean(call.values, call, self.name)
        return scale_from_mean(heads_BNHE, mean_BNKE, self.omega if self.fixed is None else self.fixed)


def scale_from_mean(heads_BNHE: Tensor, mean_BNKE: Tensor, omega: Tensor | float) -> Tensor:
    """Move what each head gives away from the mean of the values it reads: h + ω(h − m).

    Args:
        heads_BNHE: What the query heads give.
        mean_BNKE: The mean of each value head; heads h·G to h·G + G−1 read value head h. One token where all share it.
        omega: ω, a number or one per query head.

    Example:
        >>> heads, mean = torch.tensor([5.0, 3.0]).reshape(1, 1, 2, 1), torch.ones(1, 1, 1, 1)
        >>> scale_from_mean(heads, mean, 0.5).flatten().tolist()  # one value head for both
        [7.0, 4.0]
    """
    grouped = heads_BNHE.unflatten(2, (mean_BNKE.shape[2], -1))
    if isinstance(omega, Tensor):
        # As an interpolation ω itself is rounded to the dtype of the heads, not 1+ω, in which a small ω would vanish.
        omega = omega.to(heads_BNHE.dtype)
        omega = omega.reshape(mean_BNKE.shape[2], -1, 1) if omega.ndim else omega
    return torch.lerp(grouped, mean_BNKE.unsqueeze(3), -omega).flatten(2, 3)
