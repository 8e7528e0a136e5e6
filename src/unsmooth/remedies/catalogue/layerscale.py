r"""LayerScale (Touvron et al. 2021, "Going deeper with image Transformers", CaiT, arXiv 2103.17239).

.. math:: x \leftarrow x + \mathrm{diag}(\gamma)\,f(x), \qquad \gamma \text{ small at the start, learned}

with a γ of its own for each branch and one number per channel, so that, unlike `rezero` and `skipinit`, it groups the
weights that write into the same channel; norms stay. The paper starts γ at 0.1 up to 18 layers, at 1e-5 for 24 and at
1e-6 for deeper networks; between 18 and 24, where it says nothing, we take that of 24. The block of its code
(facebookresearch/deit, ``cait_models.py``) has 1e-4 where nothing else is said, which is ``start=1e-4``. A small γ
makes a trained model forget what it knows; ``start=1.0`` adds factors to learn to a trained one.

It multiplies H by diag(γ). In a post-norm block the norm after the addition stays. Cross-attention has a γ of its own,
and so has every further branch, such as the convolution's in a conformer. Neutral at ``start=1.0``. Causal: nothing
looks across tokens. Cost: one multiplication per branch; none once folded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor, nn

from unsmooth.models.value_projection import ValueProjection
from unsmooth.remedies.base import CausalForm, Edit, remedy
from unsmooth.remedies.branches import fold_scales, folded_scales, scaled_output, uncrossed, why_not_folded
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
    """Multiply each channel of every branch by a learned number that starts small.

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
        self.branches = (*site.branches, *(f"branch {number}" for number in range(len(site.wiring.others))))
        self.gamma = nn.Parameter(torch.full((len(self.branches), site.dim), start, **site.like_weights()))
        self.why_not = why_not_folded(site)

    @classmethod
    def refusal(cls, site: Site, options: Mapping[str, Any]) -> str | None:
        """Where a branch would have no γ."""
        return uncrossed(site)

    def on_attention(self, branch_BND: Tensor, call: Call) -> Tensor:
        """Scale the branch."""
        return weigh(branch_BND, self.of("attention"))

    def on_mlp(self, branch_BND: Tensor, call: Call) -> Tensor:
        """Scale the branch."""
        return weigh(branch_BND, self.of("mlp"))

    def on_cross(self, branch_BND: Tensor, call: Call) -> Tensor:
        """Scale the branch."""
        return weigh(branch_BND, self.of("cross"))

    def on_other(self, branch_BND: Tensor, call: Call, number: int) -> Tensor:
        """Scale the branch."""
        return weigh(branch_BND, self.of(f"branch {number}"))

    def fold(self, site: Site) -> None:
        """Into every branch."""
        fold_scales(site, *(self.of(name) if name in self.branches else 1.0 for name in ("attention", "mlp", "cross")))

    def folds_into(self, site: Site) -> Iterable[nn.Parameter]:
        """What ends the branches."""
        return folded_scales(site)

    def why_not_foldable(self) -> str | None:
        """What ends a branch beside attention and MLP may not be known."""
        return self.why_not

    def effective(self, values: ValueProjection) -> ValueProjection:
        """H is multiplied by diag(γ)."""
        return scaled_output(values, self.of("attention").detach().to(values.w_o))

    def effective_cross(self, values: ValueProjection) -> ValueProjection:
        """By its own."""
        return scaled_output(values, self.of("cross").detach().to(values.w_o))

    def report(self) -> Mapping[str, float]:
        """The mean size of γ in each branch."""
        words = {"mlp": "the MLP", "cross": "cross-attention"}
        return {
            f"mean |gamma| of {words.get(name, name)}": float(self.of(name).detach().abs().mean())
            for name in self.branches
        }

    def of(self, branch: str) -> Tensor:
        """γ of one branch."""
        return self.gamma[self.branches.index(branch)]
