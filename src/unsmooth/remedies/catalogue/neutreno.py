r"""NeuTRENO (Nguyen, Nguyen & Baraniuk 2023, arXiv 2312.00751): pull what attention gives back to the first values.

.. math:: \mathrm{out} = A V + \lambda\,(V^0 - V)

with :math:`V^0` the values of the first block. Up to that constant forcing the eigenvalues of attention become 1−λ for
the token mean and μ−λ for the rest. λ is fixed: 0.6 in the authors' code for DeiT and for segmentation, 0.4 in that
for language models (tamnguyen9520/NeuTRENO_NeurIPS2024); learning it is an option of ours. That code leaves the first
block alone, where the term is zero anyway, so it is the paper's equation.

:math:`V^0` comes from the first block that has the remedy, in the same pass: block 0, unless `layers` leaves it out.
That block lends its values and is otherwise as it was, so ``layers=[0, 6, 7]`` changes blocks 6 and 7 by the values of
block 0, while ``layers=[6, 7]`` changes block 7 by those of block 6. Blocks that are shared over depth (ALBERT) lend
at their first call.

Neutral at ``lam=0.0``. Causal: nothing looks across tokens, and in cached decoding nothing is kept, for the term needs
the newest tokens only. Cost: one subtraction and one addition per block; the first values live as long as the pass.
Gradients flow into them; under gradient checkpointing only with ``use_reentrant=False``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from unsmooth.remedies.base import CausalForm, Edit, remedy
from unsmooth.remedies.call import Call
from unsmooth.remedies.site import Site
from unsmooth.spec import Range

_LENT = "neutreno.values"


@remedy
class Neutreno(Edit):
    """Add λ(V⁰ − V) to what the heads give."""

    name = "neutreno"
    summary = "what attention gives is pulled back to the values of the first block"
    paper = "Nguyen, Nguyen & Baraniuk 2023, arXiv 2312.00751"
    equation = "out = AV + λ(V⁰ − V), V⁰ the values of the first block that has it"
    neutral: ClassVar[Mapping[str, Any] | None] = {"lam": 0.0}
    causal: ClassVar[CausalForm] = "unchanged"
    cost = "one subtraction and one addition per block"
    options: ClassVar[Mapping[str, str]] = {
        "lam": "λ, 0 to 2, for good or where training starts",
        "learn": "'no' (as in the paper), 'layer' (one λ per layer) or 'head' (one per head)",
    }

    def __init__(
        self, site: Site, *, lam: Annotated[float, Range(0.0, 2.0)] = 0.6, learn: Literal["no", "layer", "head"] = "no"
    ) -> None:
        super().__init__(site)
        called_again = site.host.depth({site.path: site.block}) > 1
        # In block 0 the term is zero whatever λ is: there is nothing to learn, unless it is called again.
        learned = learn != "no" and (site.index > 0 or called_again)
        self.fixed: float | None = None if learned else lam
        if learned:
            # Not a scalar: FSDP shards parameters, and a scalar has nothing to shard.
            shape = (site.wiring.weights.heads.query,) if learn == "head" else (1,)
            self.lam = nn.Parameter(torch.full(shape, lam, **site.like_weights()))

    @classmethod
    def refusal(cls, site: Site, options: Mapping[str, Any]) -> str | None:
        """Where the same place among the values is another token's in another block."""
        if site.wiring.windowed:
            return "its values lie in windows that are shifted from block to block, so V⁰ − V would pair other tokens"
        return None

    def hands_on(self) -> str | None:
        """The first values."""
        return _LENT

    def on_heads(self, heads_BNHE: Tensor, call: Call) -> Tensor:
        """Lend the values where no block has, and add the term."""
        assert call.values is not None, "noted for every edit of the heads"
        first_BNKE = call.shared.setdefault(_LENT, call.values)
        return pull_back(heads_BNHE, first_BNKE, call.values, self.lam if self.fixed is None else self.fixed)


def pull_back(heads_BNHE: Tensor, first_BNKE: Tensor, values_BNKE: Tensor, lam: Tensor | float) -> Tensor:
    """AV + λ(V⁰ − V).

    Args:
        heads_BNHE: AV, what the query heads give.
        first_BNKE: V⁰; heads h·G to h·G + G−1 read value head h.
        values_BNKE: V.
        lam: λ: a number, one in a tensor, or one per query head.

    Example:
        >>> heads, first, values = torch.tensor([5.0, 3.0]), torch.tensor([1.0]), torch.tensor([3.0])
        >>> pull_back(heads.reshape(1, 1, 2, 1), first.reshape(1, 1, 1, 1), values.reshape(1, 1, 1, 1), 0.5).flatten()
        tensor([4., 2.])
    """
    grouped = torch.unflatten(heads_BNHE, 2, (values_BNKE.shape[2], -1))
    change = (first_BNKE - values_BNKE).unsqueeze(3)
    if isinstance(lam, Tensor):
        lam_KG1 = lam.to(change.dtype).expand(heads_BNHE.shape[2]).view(values_BNKE.shape[2], -1, 1)
        return torch.addcmul(grouped, change, lam_KG1).flatten(2, 3)
    return torch.add(grouped, change, alpha=lam).flatten(2, 3)
