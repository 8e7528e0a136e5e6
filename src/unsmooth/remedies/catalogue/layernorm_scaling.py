r"""LayerNorm scaling (Sun et al. 2025, "The curse of depth in large language models", arXiv 2502.05795).

.. math:: \mathrm{LN}(x) \leftarrow \frac{1}{\sqrt{\ell}}\,\mathrm{LN}(x), \qquad \ell = 1, 2, \dots

in both norms of the ℓ-th block, so that in a pre-norm model the variance of the stream, and with it how little deep
blocks change it, grows more slowly with depth. The final norm is not the blocks', and stays as it is. In the official
code (lmsdss/LayerNorm-Scaling, ``modeling_llama.py``) that we could read, the branch that does so cannot be reached,
as a name is lower-cased before it is compared with "LNS"; this is the paper's equation. Its README advises against
weights that start smaller with depth beside it.

Neutral at ``scale=1.0``. Only for pre-norm and parallel blocks without cross-attention, whose norm would be left as it
is. Causal: nothing looks across tokens. Cost: one multiplication per norm; none once folded. Where blocks are compiled
one by one, each is by itself, as its s is another: ``torch._dynamo.config.recompile_limit`` has to allow as many.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor, nn

from unsmooth.models.block_parts import part
from unsmooth.models.value_projection import ValueProjection
from unsmooth.remedies.base import CausalForm, Edit, remedy
from unsmooth.remedies.branches import crossed, scale_linear
from unsmooth.remedies.call import Call
from unsmooth.remedies.norms import are_dropped
from unsmooth.remedies.site import Site
from unsmooth.spec import Range


@remedy
class LayerNormScaling(Edit):
    """Multiply what the norms give by 1/√ℓ in the ℓ-th block.

    Example:
        >>> import unsmooth
        >>> layer = torch.nn.TransformerEncoderLayer(4, nhead=2, batch_first=True, norm_first=True)
        >>> model = torch.nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        >>> _ = unsmooth.apply(model, "layernorm_scaling")
        >>> model.layers[0].unsmooth.layernorm_scaling.scale, model.layers[3].unsmooth.layernorm_scaling.scale
        (1.0, 0.5)
    """

    name = "layernorm_scaling"
    summary = "what the norms give is multiplied by 1/√ℓ in the ℓ-th block"
    paper = "Sun et al. 2025, arXiv 2502.05795"
    equation = "LN(x) ← s·LN(x), s = 1/√ℓ, ℓ from 1"
    neutral: ClassVar[Mapping[str, Any] | None] = {"scale": 1.0}
    causal: ClassVar[CausalForm] = "unchanged"
    folds = "s goes into the weights of the norms"
    cost = "one multiplication per norm; none once folded"
    options: ClassVar[Mapping[str, str]] = {"scale": "s, 0 to 10, the same in every block; None for 1/√ℓ"}
    needs_norms: ClassVar[bool] = True

    def __init__(self, site: Site, *, scale: Annotated[float, Range(0.0, 10.0)] | None = None) -> None:
        super().__init__(site)
        self.scale = (site.index + 1) ** -0.5 if scale is None else scale
        norms = (part(site.block, path) for path in site.wiring.input_norms)
        self.weighted = all(getattr(norm, "weight", None) is not None for norm in norms)

    @classmethod
    def refusal(cls, site: Site, options: Mapping[str, Any]) -> str | None:
        """Where no norm stands between the stream and a branch, one does not keep its size, or has another norm."""
        if site.wiring.style == "post":
            return "it has its norms after the additions, so the stream itself would be scaled"
        if site.wiring.output_norms is not None:
            return "its branches end in norms, which give them back the size that is taken from them"
        if are_dropped(site):
            return "another remedy has dropped its norms"
        return crossed(site, "and its norm would not be scaled")

    def on_attention_norm(self, normed_BND: Tensor, call: Call) -> Tensor:
        """Scale what attention reads."""
        return normed_BND * self.scale

    def on_mlp_norm(self, normed_BND: Tensor, call: Call) -> Tensor:
        """Scale what the MLP reads."""
        return normed_BND * self.scale

    def fold(self, site: Site) -> None:
        """Into both norms, or the one that attention and MLP share."""
        for path in site.wiring.input_norms:
            scale_linear(part(site.block, path), self.scale)

    def folds_into(self, site: Site) -> Iterable[nn.Parameter]:
        """The norms."""
        return site.weights_at(*site.wiring.input_norms)

    def why_not_foldable(self) -> str | None:
        """A norm may have no weights."""
        return None if self.weighted else "its norms have no weights"

    def effective(self, values: ValueProjection) -> ValueProjection:
        """The norm in front of H is multiplied by s."""
        norm, dim = values.norm, values.dim
        weight = (
            torch.ones(dim, dtype=values.w_v.dtype, device=values.w_v.device) if norm.weight is None else norm.weight
        )
        bias = None if norm.bias is None else norm.bias * self.scale
        return dataclasses.replace(values, norm=dataclasses.replace(norm, weight=weight * self.scale, bias=bias))
