r"""Value residual learning (Zhou et al. 2024, arXiv 2410.17897): each block's values mixed with those of the first.

.. math:: \mathrm{out} = A\,(\lambda_1 V^1 + \lambda_2 V)

with :math:`V^1` the values of the first block: the paper's ResFormer. The authors' code has λ₁ = λ₂ = 0.5 and leaves
the first block alone (Zcchill/Value-Residual-Learning, modeling_llama_resformer.py). Learning both, per layer or head,
is an option. ``first=1.0, own=0.0`` is their SVFormer, in which every block has the first one's values (the smaller
key/value cache that it is made for is not had here).

NeuTRENO, :math:`AV + \lambda(V^0 - V)`, adds the first values after attention has mixed, to the token they belong to;
here they are mixed with the rest, so attention decides whose first values a token gets. Up to that forcing the
eigenvalues become λ₂ for the token mean and λ₂μ for the rest: all shrink alike, where NeuTRENO moves all by λ.

:math:`V^1` comes from the first block that has the remedy, in the same pass, and that block is otherwise as it was:
block 0, unless `layers` leaves it out. Blocks that are shared over depth (ALBERT) lend at their first call.

Neutral at ``first=0.0, own=1.0``. Causal: nothing looks across tokens, and the mixed values are what the key/value
cache keeps anyway. Cost: two products per block; the first values live as long as the pass. Gradients flow into them;
under gradient checkpointing only with ``use_reentrant=False``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from unsmooth.remedies.base import CausalForm, Edit, remedy
from unsmooth.remedies.call import Call
from unsmooth.remedies.site import Site
from unsmooth.remedies.weighing import weigh
from unsmooth.spec import Range

_LENT = "value_residual.lent"


@remedy
class ValueResidual(Edit):
    """Mix the values with those of the first block before attention does.

    Example:
        >>> import unsmooth
        >>> layer = nn.TransformerEncoderLayer(2, nhead=1, batch_first=True)
        >>> model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        >>> edit = unsmooth.apply(model, "value_residual").layers[1].unsmooth.value_residual
        >>> first, values = torch.ones(1, 1, 1, 2), torch.full((1, 1, 1, 2), 5.0)
        >>> call = Call(values[:, :, 0], False, None, None, None, {})
        >>> _ = model.layers[0].unsmooth.value_residual.on_values(first, call)
        >>> edit.on_values(values, call).flatten().tolist()  # half of 1 and half of 5
        [3.0, 3.0]
    """

    name = "value_residual"
    summary = "the values of each block are mixed with those of the first, before attention mixes tokens"
    paper = "Zhou et al. 2024, arXiv 2410.17897"
    equation = "out = A(λ₁V¹ + λ₂V), V¹ the values of the first block that has it"
    neutral: ClassVar[Mapping[str, Any] | None] = {"first": 0.0, "own": 1.0}
    causal: ClassVar[CausalForm] = "unchanged"
    cost = "two products per block"
    options: ClassVar[Mapping[str, str]] = {
        "first": "λ₁, the weight of the first block's values, for good or where training starts, -2 to 2",
        "own": "λ₂, the weight of the block's own values, likewise",
        "learn": "'no' (as in the authors' code), 'layer' (one λ₁ and one λ₂ per layer) or 'head' (per value head)",
    }

    first: Tensor
    own: Tensor

    def __init__(
        self,
        site: Site,
        *,
        first: Annotated[float, Range(-2.0, 2.0)] = 0.5,
        own: Annotated[float, Range(-2.0, 2.0)] = 0.5,
        learn: Literal["no", "layer", "head"] = "no",
    ) -> None:
        super().__init__(site)
        self.called_again = site.host.depth({site.path: site.block}) > 1
        # Block 0 lends its values and stays as it is: there is nothing to learn, unless it is called again.
        self.learned = learn != "no" and (site.index > 0 or self.called_again)
        # Not a scalar: FSDP shards parameters, and a scalar has nothing to shard.
        shape = (site.wiring.weights.heads.key_value, 1) if learn == "head" else (1,)
        for name, number in {"first": first, "own": own}.items():
            start = torch.full(shape, number, **site.like_weights())
            if self.learned:
                self.register_parameter(name, nn.Parameter(start))
            else:
                self.register_buffer(name, start, persistent=False)

    @classmethod
    def refusal(cls, site: Site, options: Mapping[str, Any]) -> str | None:
        """Where the same place among the values is another token's in another block."""
        if site.wiring.windowed:
            return "its values lie in windows that are shifted from block to block, so it would mix those of others"
        return None

    def hands_on(self) -> str | None:
        """The first values."""
        return _LENT

    def on_values(self, values_BNKE: Tensor, call: Call) -> Tensor:
        """Lend the values where no block has, else mix with those lent."""
        first_BNKE, lender, stream = call.shared.setdefault(_LENT, (values_BNKE, self, call.stream))
        # The lender may run again in the backward pass, where its values are lent already.
        if not (lender is self and (stream is call.stream or not self.called_again)):
            return weigh(values_BNKE, self.own, first_BNKE.to(values_BNKE.dtype), self.first)
        if not self.learned:
            return values_BNKE
        # The lender has no use for its numbers, but DDP waits for the gradient of every parameter.
        nothing: Tensor = 0.0 * (self.first + self.own).to(values_BNKE.dtype)
        return values_BNKE + nothing
