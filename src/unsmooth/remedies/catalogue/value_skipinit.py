r"""Value-SkipInit (He et al. 2023, arXiv 2302.10322): attention starts as the identity.

.. math:: A \leftarrow \alpha I + \beta A, \qquad \alpha = 1,\ \beta = 0 \text{ at the start, learned}

as He & Hofmann (arXiv 2311.01906, equation 4) give it. The eigenvalue 1 of the token mean becomes α+β, every other one
α+βμ, so at the start no mode is favoured over another. No map is formed: times the values it is
:math:`\alpha V + \beta\,AV`. It is `shaped` with γ=0.

The paper has it in blocks without a way past attention, where attention alone would make all tokens alike, with value
and output weights that start orthogonal: ``skip="drop"`` takes the way past; weights are left as they are. β=0 also
means that a trained model forgets what its attention knows: it is made for training from the start.

Neutral at ``alpha=0.0, beta=1.0, skip="keep"``. Causal: the identity crosses no tokens. Cost: two products per block.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from torch import Tensor

from unsmooth.remedies.base import CausalForm, remedy
from unsmooth.remedies.call import Call
from unsmooth.remedies.shaping import BesideIdentity, shape_heads
from unsmooth.remedies.site import Site
from unsmooth.spec import Range


@remedy
class ValueSkipInit(BesideIdentity):
    """Give each head α of its own values and β of what it attends to.

    Example:
        >>> import torch, unsmooth
        >>> from torch import nn
        >>> layer = nn.TransformerEncoderLayer(2, nhead=1, batch_first=True)
        >>> model = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        >>> edit = unsmooth.apply(model, "value_skipinit").layers[0].unsmooth.value_skipinit
        >>> values = torch.tensor([[1.0, 0.0], [3.0, 2.0]]).reshape(1, 2, 1, 2)
        >>> call = Call(values[:, :, 0], False, None, None, None, {}, values)
        >>> torch.equal(edit.on_heads(torch.full_like(values, 9.0), call), values)  # at the start, its own values
        True
    """

    name = "value_skipinit"
    summary = "attention starts as the identity, and learns how much of itself to add"
    paper = "He et al. 2023, arXiv 2302.10322"
    equation = "A ← αI + βA, α = 1 and β = 0 at the start"
    neutral: ClassVar[Mapping[str, Any] | None] = {"alpha": 0.0, "beta": 1.0, "skip": "keep"}
    causal: ClassVar[CausalForm] = "unchanged"
    cost = "two products per block"
    options: ClassVar[Mapping[str, str]] = {
        "alpha": "α, the weight of the identity, where training starts or for good, -10 to 10",
        "beta": "β, the weight of attention, likewise",
        "learn": "'layer' (one α and one β per layer), 'head' (one of each per head) or 'no'",
        "skip": "'keep', or 'drop' the way past attention, as the paper does",
    }

    alpha: Tensor
    beta: Tensor

    def __init__(
        self,
        site: Site,
        *,
        alpha: Annotated[float, Range(-10.0, 10.0)] = 1.0,
        beta: Annotated[float, Range(-10.0, 10.0)] = 0.0,
        learn: Literal["layer", "head", "no"] = "layer",
        skip: Literal["keep", "drop"] = "keep",
    ) -> None:
        super().__init__(site)
        self.start(site, {"alpha": alpha, "beta": beta}, learn, skip)

    def on_heads(self, heads_BNHE: Tensor, call: Call) -> Tensor:
        """α·V + β·AV."""
        assert call.values is not None, "noted for every edit of the heads"
        return shape_heads(heads_BNHE, call.values, self.alpha, self.beta)

    def report(self) -> Mapping[str, float]:
        """How far attention has come."""
        return {"alpha": float(self.alpha.detach().mean()), "beta": float(self.beta.detach().mean())}
