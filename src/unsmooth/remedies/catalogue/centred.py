r"""Centred attention (Ali, Galanti & Wolf 2023, arXiv 2306.01610): rows of attention that sum to zero instead of one.

.. math:: A \leftarrow A - \tau C, \qquad C = \tfrac{1}{n}\mathbf{1}\mathbf{1}^\top

No map is formed: times the values it is what a head gives less the mean of its values. The eigenvalue 1 of the token
mean becomes 1−τ, nothing at τ=1, and every other one stays μ. The paper's code is not public: that the whole of C is
taken off after the softmax is how others who cite it describe it, so τ is an option, and so is learning it.

In an encoder AC = C, so it is the same as ``deescalate(place="values")``; in a decoder it is not, for there C is each
token's own mean. It is `shaped` with α=0, β=1 and γ=τ.

Neutral at ``tau=0.0``. Causal: C is uniform over the tokens seen so far, earlier ones in the key/value cache counted
(also where attention sees a window only), and those in a memory of earlier segments; the eigenvalues become
:math:`A_{ii} - \tau/i`, and at τ=1 attention gives the first token nothing. Cost: one mean of the values and one
subtraction per block; in cached decoding one running sum per value head is kept.
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
class Centred(Recalling):
    """Take the mean of its values off what each head gives.

    Example:
        >>> import unsmooth
        >>> layer = nn.TransformerEncoderLayer(2, nhead=1, batch_first=True)
        >>> model = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        >>> edit = unsmooth.apply(model, "centred").layers[0].unsmooth.centred
        >>> values = torch.tensor([[1.0, 0.0], [3.0, 2.0]]).reshape(1, 2, 1, 2)
        >>> call = Call(values[:, :, 0], False, None, None, None, {}, values)
        >>> edit.on_heads(values, call).reshape(2, 2).tolist()  # each token attends to itself; the mean is (2, 1)
        [[-1.0, -1.0], [1.0, 1.0]]
    """

    name = "centred"
    summary = "rows of attention sum to zero: each head gives what it gives less the mean of its values"
    paper = "Ali, Galanti & Wolf 2023, arXiv 2306.01610"
    equation = "A ← A − τC, C = 11ᵀ/n"
    neutral: ClassVar[Mapping[str, Any] | None] = {"tau": 0.0}
    causal: ClassVar[CausalForm] = "prefix mean"
    cost = "one mean of the values and one subtraction per block"
    options: ClassVar[Mapping[str, str]] = {
        "tau": "τ, 0 to 2, for good or where training starts; 1 makes rows sum to zero",
        "learn": "'no' (as in the paper), 'layer' (one τ per layer) or 'head' (one per head)",
    }

    def __init__(
        self, site: Site, *, tau: Annotated[float, Range(0.0, 2.0)] = 1.0, learn: Literal["no", "layer", "head"] = "no"
    ) -> None:
        super().__init__(site)
        self.fixed: float | None = tau if learn == "no" else None
        if learn != "no":
            # Not a scalar: FSDP shards parameters, and a scalar has nothing to shard.
            shape = (site.wiring.weights.heads.query,) if learn == "head" else (1,)
            self.tau = nn.Parameter(torch.full(shape, tau, **site.like_weights()))

    def on_heads(self, heads_BNHE: Tensor, call: Call) -> Tensor:
        """AV − τ·CV."""
        assert call.values is not None, "noted for every edit of the heads"
        values_BNKE = call.values.to(heads_BNHE.dtype)
        shift = -self.fixed if self.fixed is not None else -self.tau.unsqueeze(-1)
        if not call.causal and call.real_BN is None and values_BNKE.shape == heads_BNHE.shape:
            return blend_whole(heads_BNHE, values_BNKE, 0.0, shift)
        mean_BNKE = token_mean(values_BNKE, call, self.name, earlier=self.recalled())
        # Query heads k·G to k·G + G−1 read value head k.
        mean_BNHE = mean_BNKE.repeat_interleave(heads_BNHE.shape[2] // mean_BNKE.shape[2], dim=2)
        return blend(heads_BNHE, mean_BNHE, 0.0, shift)
