r"""Peri-LN (Kim et al. 2025, arXiv 2502.02732): a norm on each branch's output too.

.. math:: x \leftarrow x + \mathrm{LN}_{out}\big(f(\mathrm{LN}_{in}\,x)\big)

so that what a block adds has the size that its new norm's weights say, however large the weights of the branch grow.
The new norms are of the kind and with the eps of the block's own (LayerNorm or RMSNorm). The norms that the paper puts
on the embeddings and after the last block are not the blocks', and stay what they are. Gemma 2 and 3 and the networks
of `unsmooth.networks` with ``norm="peri"`` are built so. The new norm stands at the end of the branch, after its
dropout; a branch that stochastic depth drops stays zero up to the norm's bias, and the factor by which it would make up
for that is normed away.

No neutral setting: a norm changes every model. Only for pre-norm and parallel blocks without cross-attention,
which would be left as it is. Causal: nothing looks across tokens. Cost: one norm per branch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from torch import Tensor

from unsmooth.models.value_projection import ValueProjection
from unsmooth.remedies.base import CausalForm, Edit, remedy
from unsmooth.remedies.branches import crossed, scaled_output
from unsmooth.remedies.call import Call
from unsmooth.remedies.norms import AddedNorm, are_dropped
from unsmooth.remedies.site import Site
from unsmooth.spec import Range


@remedy
class PeriNorm(Edit):
    """Normalise both branches before they are added.

    Example:
        >>> import torch, unsmooth
        >>> layer = torch.nn.TransformerEncoderLayer(4, nhead=2, batch_first=True, norm_first=True, dropout=0.0)
        >>> model = torch.nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        >>> x_BND = torch.randn(1, 3, 4)
        >>> added_BND = unsmooth.apply(model, "peri_norm", start=3.0)(x_BND) - x_BND
        >>> bool(added_BND.mean(dim=-1).abs().max() < 1e-5)  # two branches, each of mean zero over channels
        True
    """

    name = "peri_norm"
    summary = "each branch is normalised before it is added"
    paper = "Kim et al. 2025, arXiv 2502.02732"
    equation = "x ← x + LN_out(f(LN_in x))"
    causal: ClassVar[CausalForm] = "unchanged"
    cost = "one norm per branch"
    options: ClassVar[Mapping[str, str]] = {"start": "what the new norms' weights are before training, -10 to 10"}
    needs_norms: ClassVar[bool] = True

    def __init__(self, site: Site, *, start: Annotated[float, Range(-10.0, 10.0)] = 1.0) -> None:
        super().__init__(site)
        self.attention, self.mlp = AddedNorm(site, start), AddedNorm(site, start)

    @classmethod
    def refusal(cls, site: Site, options: Mapping[str, Any]) -> str | None:
        """Where branches have such a norm already, no norm in front, or one would get none."""
        if site.wiring.style == "post":
            return "it has its norms after the additions, and Peri-LN has them on both sides of the branches"
        if site.wiring.output_norms is not None:
            return "its branches end in norms already"
        if are_dropped(site):
            return "another remedy has dropped its norms"
        return crossed(site, "and would have no norm on its output")

    def on_attention(self, branch_BND: Tensor, call: Call) -> Tensor:
        """Normalise the branch."""
        normed: Tensor = self.attention(branch_BND)
        return normed

    def on_mlp(self, branch_BND: Tensor, call: Call) -> Tensor:
        """Normalise the branch."""
        normed: Tensor = self.mlp(branch_BND)
        return normed

    def effective(self, values: ValueProjection) -> ValueProjection:
        """A norm follows H, and all that was done to the branch before."""
        if values.gain is not None:
            values = dataclasses.replace(scaled_output(values, values.gain), gain=None)
        return dataclasses.replace(values, output_norm=self.attention.read())
