r"""Residual scaling (Noci et al. 2022, arXiv 2206.03126): branches by 1/√L, so that depth does not add up.

Update: :math:`x \leftarrow x + s f(x)` on both branches, :math:`s = 1/\sqrt{L}`; with depth L the eigenvalues of a
layer are :math:`1 + s\mu\lambda`. Neutral at ``scale=1.0``. Causal: nothing looks across tokens. Cost: one
multiplication per branch; none once folded.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from unsmooth.models.block_parts import part
from unsmooth.models.value_projection import ValueProjection
from unsmooth.remedies.base import CausalForm, Edit, remedy, within
from unsmooth.remedies.call import Call
from unsmooth.remedies.site import Site


@remedy
class ResidualScaling(Edit):
    """Multiply both branches by 1/√L before they are added."""

    name = "residual_scaling"
    summary = "branches are multiplied by 1/√L before they are added"
    paper = "Noci et al. 2022, arXiv 2206.03126"
    equation = "x ← x + s·f(x), s = 1/√L"
    neutral: ClassVar[Mapping[str, Any] | None] = {"scale": 1.0}
    causal: ClassVar[CausalForm] = "unchanged"
    folds = "s goes into the last linear map of each branch"
    cost = "one multiplication per branch; none once folded"
    options: ClassVar[Mapping[str, str]] = {"scale": "s; None for 1/√L with L the depth of the model"}

    def __init__(self, site: Site, *, scale: float | None = None) -> None:
        super().__init__(site)
        self.scale = site.depth**-0.5 if scale is None else within("scale", scale, 0.0, 10.0)

    def on_attention(self, branch_BND: Tensor, call: Call) -> Tensor:
        """Scale the branch."""
        return branch_BND * self.scale

    def on_mlp(self, branch_BND: Tensor, call: Call) -> Tensor:
        """Scale the branch."""
        return branch_BND * self.scale

    def fold(self, site: Site) -> None:
        """The last linear map of a branch makes the branch, so it takes the factor."""
        for path in (site.wiring.output, site.wiring.mlp[-1]):
            scale_linear(part(site.block, path), self.scale)

    def effective(self, values: ValueProjection) -> ValueProjection:
        """H is scaled."""
        return scaled_output(values, self.scale)


def scale_linear(module: torch.nn.Module, scale: float | Tensor) -> None:
    """Multiply a linear map and its bias, in place."""
    with torch.no_grad():
        for parameter in module.parameters(recurse=False):
            parameter.mul_(scale)


def scaled_output(values: ValueProjection, scale: float | Tensor) -> ValueProjection:
    """The projection of a branch that is multiplied by `scale`."""
    b_o = None if values.b_o is None else values.b_o * scale
    return dataclasses.replace(values, w_o=values.w_o * scale, b_o=b_o)
