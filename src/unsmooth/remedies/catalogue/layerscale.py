r"""LayerScale (Touvron et al. 2021, "Going deeper with image Transformers", CaiT, arXiv 2103.17239).

.. math:: x \leftarrow x + \mathrm{diag}(\gamma)\,f(x), \qquad \gamma \text{ small at the start, learned}

with a γ of its own for each branch and one number per channel, so that, unlike `rezero` and `skipinit`, it groups the
weights that write into the same channel; norms stay. The paper starts γ at 0.1 up to 18 layers, at 1e-5 for 24 and at
1e-6 for deeper networks; between 18 and 24, where it says nothing, we take that of 24. The block of its code
(facebookresearch/deit, ``cait_models.py``) has 1e-4 where nothing else is said, which is ``start=1e-4``. A small γ
makes a trained model forget what it knows; ``start=1.0`` adds factors to learn to a trained one.

It multiplies H by diag(γ). In a post-norm block the norm after the addition stays. Neutral at ``start=1.0``. Only
for blocks without cross-attention, which would be left as it is. Causal: nothing looks across tokens. Cost: one
multiplication per branch; none once folded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor, nn

from unsmooth.models.value_projection import ValueProjection
from unsmooth.remedies.base import CausalForm, Edit, remedy
from unsmooth.remedies.branches import crossed, fold_scales, folded_scales, scaled_output
from unsmooth.remedies.call import Call
from unsmooth.remedies.site import Site
from unsmooth.remedies.weighing import weigh
from unsmooth.spec import Range


def usual_start(depth: int) -> float:
    """The paper's γ at the start, by how many layers there are.

    >>> [usual_start(depth) for depth in (12, 18, 24, 36)]
    [0.1, 0.1, 1e-05, 1e-06]
    """
    if depth <= 18:
        return 0.1
    return 1e-5 if depth <= 24 else 1e-6


@remedy
class LayerScale(Edit):
    """Multiply each channel of both branches by a learned number that starts small.

    Example:
        >>> import unsmooth
        >>> layer = nn.TransformerEncoderLayer(4, nhead=2, batch_first=True)
        >>> model = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        >>> _ = unsmooth.apply(model, "layerscale")
        >>> model.layers[0].unsmooth.layerscale.gamma.data  # attention's and the MLP's
        tensor([[0.1000, 0.1000, 0.1000, 0.1000],
                [0.1000, 0.1000, 0.1000, 0.1000]])
    """

    name = "layerscale"
    summary = "each channel of the branches is multiplied by a learned number that starts small"
    paper = "Touvron et al. 2021, arXiv 2103.17239"
    equation = "x ← x + diag(γ)·f(x), γ = 0.1, 1e-5 or 1e-6 at the start, by depth"
    neutral: ClassVar[Mapping[str, Any] | None] = {"start": 1.0}
    causal: ClassVar[CausalForm] = "unchanged"
    folds = "γ goes into the rows of the last linear map of each branch"
    cost = "one multiplication per branch; none once folded"
    options: ClassVar[Mapping[str, str]] = {
        "start": "what γ is before training, -10 to 10; None for the paper's, by depth: 0.1 up to 18 layers, 1e-5 "
        "up to 24, 1e-6 beyond",
    }

    def __init__(self, site: Site, *, start: Annotated[float, Range(-10.0, 10.0)] | None = None) -> None:
        super().__init__(site)
        start = usual_start(site.depth) if start is None else start
        self.gamma = nn.Parameter(torch.full((2, site.dim), start, **site.like_weights()))

    @classmethod
    def refusal(cls, site: Site, options: Mapping[str, Any]) -> str | None:
        """Where a branch would have no γ."""
        return crossed(site, "and would have no γ")

    def on_attention(self, branch_BND: Tensor, call: Call) -> Tensor:
        """Scale the branch."""
        return weigh(branch_BND, self.gamma[0])

    def on_mlp(self, branch_BND: Tensor, call: Call) -> Tensor:
        """Scale the branch."""
        return weigh(branch_BND, self.gamma[1])

    def fold(self, site: Site) -> None:
        """Into both branches."""
        fold_scales(site, self.gamma[0], self.gamma[1])

    def folds_into(self, site: Site) -> Iterable[nn.Parameter]:
        """What ends both branches."""
        return folded_scales(site)

    def effective(self, values: ValueProjection) -> ValueProjection:
        """H is multiplied by diag(γ)."""
        return scaled_output(values, self.gamma[0].detach().to(values.w_o))

    def report(self) -> Mapping[str, float]:
        """The mean size of γ in both branches."""
        size = self.gamma.detach().abs().mean(dim=1)
        return {"mean |gamma| of attention": float(size[0]), "mean |gamma| of the MLP": float(size[1])}
