r"""Residual scaling (Noci et al. 2022, arXiv 2206.03126): branches by 1/√L, so that depth does not add up.

.. math:: x \leftarrow x + s\,f(x), \qquad s = 1/\sqrt{L}

on every branch of all L layers, cross-attention's too, so that the eigenvalues of an attention layer are :math:`1 +
s\mu\lambda`. L is how many blocks a token passes, so where one block is called again and again (ALBERT) each call
counts. In a post-norm block the norm after the addition stays. The paper scales branches by a number that depends on
depth; that it is 1/√L on both is how the method is known, and `scale` sets any other.

Neutral at ``scale=1.0``. Causal: nothing looks across tokens. Cost: one multiplication per branch; none once folded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar

from torch import Tensor, nn

from unsmooth.models.value_projection import ValueProjection
from unsmooth.remedies.base import CausalForm, Edit, remedy
from unsmooth.remedies.branches import fold_scales, folded_scales, scaled_output, uncrossed, why_not_folded
from unsmooth.remedies.call import Call
from unsmooth.remedies.site import Site
from unsmooth.spec import Range


@remedy
class ResidualScaling(Edit):
    """Multiply every branch by 1/√L before they are added.

    Example:
        >>> import torch, unsmooth
        >>> layer = torch.nn.TransformerEncoderLayer(4, nhead=2, batch_first=True)
        >>> model = torch.nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        >>> _ = unsmooth.apply(model, "residual_scaling")
        >>> model.layers[0].unsmooth.residual_scaling.scale  # 1/√4
        0.5
    """

    name = "residual_scaling"
    summary = "branches are multiplied by 1/√L before they are added"
    paper = "Noci et al. 2022, arXiv 2206.03126"
    equation = "x ← x + s·f(x), s = 1/√L"
    neutral: ClassVar[Mapping[str, Any] | None] = {"scale": 1.0}
    causal: ClassVar[CausalForm] = "unchanged"
    folds = "s goes into the last linear map of each branch"
    cost = "one multiplication per branch; none once folded"
    options: ClassVar[Mapping[str, str]] = {"scale": "s, 0 to 10; None for 1/√L with L the block calls of one pass"}

    def __init__(self, site: Site, *, scale: Annotated[float, Range(0.0, 10.0)] | None = None) -> None:
        super().__init__(site)
        self.scale = site.depth**-0.5 if scale is None else scale
        self.why_not = why_not_folded(site)

    @classmethod
    def refusal(cls, site: Site, options: Mapping[str, Any]) -> str | None:
        """Where a branch would not be scaled."""
        return uncrossed(site)

    def on_attention(self, branch_BND: Tensor, call: Call) -> Tensor:
        """Scale the branch."""
        return branch_BND * self.scale

    def on_mlp(self, branch_BND: Tensor, call: Call) -> Tensor:
        """Scale the branch."""
        return branch_BND * self.scale

    def on_cross(self, branch_BND: Tensor, call: Call) -> Tensor:
        """Scale the branch."""
        return branch_BND * self.scale

    def on_other(self, branch_BND: Tensor, call: Call, number: int) -> Tensor:
        """Scale the branch."""
        return branch_BND * self.scale

    def fold(self, site: Site) -> None:
        """Into every branch."""
        fold_scales(site, self.scale, self.scale, self.scale)

    def folds_into(self, site: Site) -> Iterable[nn.Parameter]:
        """What ends the branches."""
        return folded_scales(site)

    def why_not_foldable(self) -> str | None:
        """What ends a branch beside attention and MLP may not be known."""
        return self.why_not

    def effective(self, values: ValueProjection) -> ValueProjection:
        """H is multiplied by s."""
        return scaled_output(values, self.scale)

    def effective_cross(self, values: ValueProjection) -> ValueProjection:
        """As for attention."""
        return scaled_output(values, self.scale)
