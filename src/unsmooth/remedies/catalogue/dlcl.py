r"""DLCL, dynamic linear combination of layers (Wang et al. 2019, arXiv 1906.01787).

.. math:: x_{l+1} = \sum_{k=0}^{l} w^{l+1}_k\,\mathrm{LN}(y_k) \quad\text{(pre-norm)}, \qquad
    x_{l+1} = \mathrm{LN}\Big(\sum_{k=0}^{l} w^{l+1}_k\,y_k\Big) \quad\text{(post-norm)}

with :math:`y_0` what enters the first block, :math:`y_l` what the l-th block gives, and :math:`x_{l+1}` what the next
block reads, or what the last one hands on. w is learned and starts as the average. In pre-norm each :math:`y_k` is
normed once, by a norm of its own, whoever reads it. As in the official code (wangqiangneu/dlcl) with its defaults,
:math:`y_0` is not normed, and so the first block reads what it always did. The new norms are of the kind and with the
eps of the block's own (LayerNorm or RMSNorm). The final norm is not the blocks', and stays.

Blocks to which it was not applied are passed over: :math:`y_0` is what enters the first one that has it. Blocks hand
each other what they gave by way of the pass, so gradient checkpointing needs ``use_reentrant=False``.

Neutral at ``start="last", norm="none"``. Causal: nothing looks across tokens, and in cached decoding nothing is kept.
Cost: at block l one norm and a weighted sum of l + 1 streams, which live as long as the pass. Where blocks are compiled
one by one, each is by itself: ``torch._dynamo.config.recompile_limit`` has to allow as many.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from unsmooth.remedies.base import CausalForm, Edit, remedy
from unsmooth.remedies.call import Call
from unsmooth.remedies.norms import AddedNorm, are_dropped
from unsmooth.remedies.site import Site


@remedy
class DLCL(Edit):
    """Hand on a learned combination of what all blocks so far gave.

    Example:
        >>> import unsmooth
        >>> layer = nn.TransformerEncoderLayer(4, nhead=2, batch_first=True, norm_first=True)
        >>> model = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        >>> _ = unsmooth.apply(model, "dlcl")
        >>> model.layers[2].unsmooth.dlcl.weight.tolist()  # of what entered, and of three blocks
        [0.25, 0.25, 0.25, 0.25]
    """

    name = "dlcl"
    summary = "each block reads a learned combination of what all blocks before it gave"
    paper = "Wang et al. 2019, arXiv 1906.01787"
    equation = "x_{l+1} = Σ_{k≤l} w_k·LN(y_k) (pre-norm) or LN(Σ_{k≤l} w_k·y_k) (post-norm), w the average at the start"
    neutral: ClassVar[Mapping[str, Any] | None] = {"start": "last", "norm": "none"}
    causal: ClassVar[CausalForm] = "unchanged"
    cost = "one norm and a weighted sum of l + 1 streams at block l"
    options: ClassVar[Mapping[str, str]] = {
        "start": "'average' (as in the paper), or 'last': one for the newest block and zero for the rest",
        "norm": "'style' as the block's own norms stand: 'each' output before it is weighed (pre-norm) or the 'sum' "
        "(post-norm); or 'none'",
    }

    def __init__(
        self,
        site: Site,
        *,
        start: Literal["average", "last"] = "average",
        norm: Literal["style", "each", "sum", "none"] = "style",
    ) -> None:
        super().__init__(site)
        self.start = start
        styled = "sum" if site.wiring.style == "post" else "each"
        self.normed = styled if norm == "style" else norm
        self.norm = AddedNorm(site) if self.normed != "none" else None
        # Its place among the blocks that have it, from 0, and the weights of one output more: set by `arrange`.
        self.place = 0
        self.weight = nn.Parameter(torch.empty(0))

    @classmethod
    def refusal(cls, site: Site, options: Mapping[str, Any]) -> str | None:
        """Where outputs cannot be added up, or one block is many layers."""
        if site.host.stage is not None:
            return "width and number of tokens change between its stages, so outputs cannot be added up"
        if site.host.depth({site.path: site.block}) > 1:
            return "it is called at every depth, so it cannot have weights for each"
        if options.get("norm") != "none" and are_dropped(site):
            return 'another remedy has dropped the norms that its own would be like; norm="none" works'
        return None

    @classmethod
    def arrange(cls, edits: Sequence[Edit], sites: Sequence[Site]) -> None:
        """Tell each its place."""
        for place, (edit, site) in enumerate(zip(edits, sites, strict=True)):
            assert isinstance(edit, DLCL), "all of one class"
            edit.place = place
            weight = torch.full((place + 2,), 1.0 / (place + 2)) if edit.start == "average" else _one_hot(place + 2)
            edit.weight = nn.Parameter(weight.to(**site.like_weights()))

    def hands_on(self) -> str | None:
        """What every block gave."""
        return f"dlcl.{self.order}"

    def on_block(self, out_BND: Tensor, call: Call) -> Tensor:
        """Note what the block gave, and combine."""
        if self.place == 0:
            call.shared[self._key(0)] = call.stream
        given_BND = self.norm(out_BND) if self.norm is not None and self.normed == "each" else out_BND
        call.shared[self._key(self.place + 1)] = given_BND
        combined = combine([call.shared[self._key(k)] for k in range(self.place + 2)], self.weight)
        return self.norm(combined) if self.norm is not None and self.normed == "sum" else combined

    def _key(self, place: int) -> str:
        return f"{self.hands_on()}.{place}"

    def why_not_foldable(self) -> str | None:
        """It reaches past the block."""
        return "what other blocks gave is in no weight of this one"

    def report(self) -> Mapping[str, float]:
        """How much of what it hands on is the newest output."""
        weight = self.weight.detach().abs()
        return {"weight of the newest": float(weight[-1] / weight.sum().clamp(min=torch.finfo(weight.dtype).tiny))}


def combine(outputs_BND: Sequence[Tensor], weight: Tensor) -> Tensor:
    """Σ w_k y_k, summed in float32 or better, in the dtype of the last.

    >>> combine([torch.tensor([1.0]), torch.tensor([10.0])], torch.tensor([0.5, 2.0]))
    tensor([20.5000])
    """
    *before, last = outputs_BND
    exact = torch.promote_types(last.dtype, torch.float32)
    # The sum lies in memory as its first term does: as what the block gave, which the next one is used to.
    total = last.to(exact) * weight[-1]
    for output_BND, one in zip(before, weight[:-1], strict=True):
        total = torch.addcmul(total, output_BND, one)
    return total.to(last.dtype)


def _one_hot(count: int) -> Tensor:
    weight = torch.zeros(count)
    weight[-1] = 1.0
    return weight
