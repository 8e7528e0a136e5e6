r"""Shaped attention (Noci et al. 2023, arXiv 2306.17759; He & Hofmann 2023, arXiv 2311.01906).

.. math:: A \leftarrow \alpha I + \beta A - \gamma C

with learned α, β and γ per head, and C what A is where all logits are zero: uniform over the keys that a token may see
(where attention is held to a window C is not, and does not cancel A at zero logits). The eigenvalue 1 of the token
mean becomes α+β−γ, every other one α+βμ, so with α=β=γ=1 nothing but the identity is left at zero logits. No map is
formed: times the values it is :math:`\alpha V + \beta\,AV - \gamma\,CV`.

He & Hofmann start at α=β=γ=1, one number per head, with queries of zeros, no way past attention and a smaller MLP
branch (bobby-he/simplified_transformers, ``centre_attn``). Queries and MLP are left as they are here; ``skip="drop"``
takes the way past. Noci et al. have :math:`I + \mathrm{softmax}(QK^\top/\tau) - C` with a temperature that grows with
width, as others describe it: ``learn="no"`` is that but for the temperature, which is the model's own here.

Neutral at ``alpha=0.0, beta=1.0, gamma=0.0, skip="keep"``. Causal: C is uniform over the tokens seen so far, padding
never counted, earlier tokens in the key/value cache or in a memory of earlier segments counted; eigenvalues are then
:math:`\alpha + \beta A_{ii} - \gamma/i`. Cost: one mean of the values and three products per block; in cached
decoding one running sum per value head is kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from torch import Tensor

from unsmooth.remedies.base import CausalForm, remedy
from unsmooth.remedies.call import Call
from unsmooth.remedies.segments import Recalling
from unsmooth.remedies.shaping import BesideIdentity, shape_heads
from unsmooth.remedies.site import Site
from unsmooth.remedies.token_mean import token_mean
from unsmooth.spec import Range


@remedy
class Shaped(BesideIdentity, Recalling):
    """Give each head α of its own values, β of what it attends to, less γ of their mean.

    Example:
        >>> import torch, unsmooth
        >>> from torch import nn
        >>> layer = nn.TransformerEncoderLayer(2, nhead=1, batch_first=True)
        >>> model = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        >>> edit = unsmooth.apply(model, "shaped", learn="no").layers[0].unsmooth.shaped
        >>> values = torch.tensor([[1.0, 0.0], [3.0, 2.0]]).reshape(1, 2, 1, 2)
        >>> mean = values.mean(1, keepdim=True).expand_as(values)
        >>> call = Call(values[:, :, 0], False, None, None, None, {}, values)
        >>> torch.equal(edit.on_heads(mean, call), values)  # uniform attention leaves the identity
        True
    """

    name = "shaped"
    summary = "attention beside an identity and less its uniform part, by three learned numbers per head"
    paper = "Noci et al. 2023, arXiv 2306.17759; He & Hofmann 2023, arXiv 2311.01906"
    equation = "A ← αI + βA − γC, C uniform over the keys seen"
    neutral: ClassVar[Mapping[str, Any] | None] = {"alpha": 0.0, "beta": 1.0, "gamma": 0.0, "skip": "keep"}
    causal: ClassVar[CausalForm] = "prefix mean"
    cost = "one mean of the values and three products per block"
    options: ClassVar[Mapping[str, str]] = {
        "alpha": "α, the weight of the identity, where training starts or for good, -10 to 10",
        "beta": "β, the weight of attention, likewise",
        "gamma": "γ, the weight of the uniform map that is taken off, likewise",
        "learn": "'head' (three numbers per head, as He & Hofmann), 'layer' (three per layer) or 'no' (Noci et al.)",
        "skip": "'keep', or 'drop' the way past attention, as both papers do",
    }

    alpha: Tensor
    beta: Tensor
    gamma: Tensor

    def __init__(
        self,
        site: Site,
        *,
        alpha: Annotated[float, Range(-10.0, 10.0)] = 1.0,
        beta: Annotated[float, Range(-10.0, 10.0)] = 1.0,
        gamma: Annotated[float, Range(-10.0, 10.0)] = 1.0,
        learn: Literal["head", "layer", "no"] = "head",
        skip: Literal["keep", "drop"] = "keep",
    ) -> None:
        super().__init__(site)
        self.start(site, {"alpha": alpha, "beta": beta, "gamma": gamma}, learn, skip)

    def on_heads(self, heads_BNHE: Tensor, call: Call) -> Tensor:
        """α·V + β·AV − γ·CV."""
        assert call.values is not None, "noted for every edit of the heads"
        values_BNKE = call.values.to(heads_BNHE.dtype)
        sees_all = not call.causal and call.real_BN is None
        mean_BNKE = None if sees_all else token_mean(values_BNKE, call, self.name, earlier=self.recalled())
        return shape_heads(heads_BNHE, values_BNKE, self.alpha, self.beta, self.gamma, mean_BNKE)
