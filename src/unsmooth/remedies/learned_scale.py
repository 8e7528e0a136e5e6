r"""What ReZero and SkipInit share: branches times a learned number, with or without the norms of the block.

.. math:: x \leftarrow x + \alpha f(x)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

import torch
from torch import Tensor, nn

from unsmooth.models.value_projection import ValueProjection
from unsmooth.remedies.base import CausalForm, Edit
from unsmooth.remedies.branches import crossed, fold_scales, folded_scales, scaled_output
from unsmooth.remedies.call import Call
from unsmooth.remedies.norms import Dropped, drop_norms, norms_of, put_back_norms, take_norms_out, who_needs_norms
from unsmooth.remedies.site import Site
from unsmooth.spec import Range

Start: TypeAlias = Annotated[float, Range(-10.0, 10.0)]
Norm: TypeAlias = Literal["drop", "keep"]


class LearnedScale(Edit):
    """Multiply both branches by a learned number.

    Args:
        site: The block.
        start: What α is before training.
        norm: "drop" or "keep" the norms of the block.
        share: Whether both branches have one α.
    """

    equation = "x ← x + α·f(x), α = 0 at the start"
    neutral: ClassVar[Mapping[str, Any] | None] = {"start": 1.0, "norm": "keep"}
    causal: ClassVar[CausalForm] = "unchanged"
    folds = 'α goes into the last linear map of each branch, with norm="keep"'
    cost = "one multiplication per branch, less two norms; none once folded"
    options: ClassVar[Mapping[str, str]] = {
        "start": "what α is before training, -10 to 10",
        "norm": "'drop' (as the paper does) or 'keep' the norms of the blocks",
    }

    def __init__(self, site: Site, start: float, norm: Norm, share: bool) -> None:
        super().__init__(site)
        self.drops = norm == "drop"
        # Not a scalar: FSDP shards parameters, and a scalar has nothing to shard.
        self.alpha = nn.Parameter(torch.full((1 if share else 2,), start, **site.like_weights()))
        self.dropped: list[Dropped] = []

    @classmethod
    def refusal(cls, site: Site, options: Mapping[str, Any]) -> str | None:
        """Where a branch would have no α, or another remedy rests on the norms."""
        if (reason := crossed(site, "and would have neither α nor its norm dropped")) is not None:
            return reason
        other = who_needs_norms(site) if options.get("norm") == "drop" else None
        return None if other is None else f'{other} rests on the norms that norm="drop" takes away'

    def alters(self, site: Site) -> Iterable[nn.Module]:
        """The norms that it drops."""
        return norms_of(site) if self.drops else ()

    def install(self, site: Site) -> None:
        """Drop the norms."""
        if self.drops:
            self.dropped = drop_norms(site)

    def remove(self, site: Site) -> None:
        """Put the norms back."""
        put_back_norms(site, self.dropped)

    def on_attention(self, branch_BND: Tensor, call: Call) -> Tensor:
        """Scale the branch."""
        return branch_BND * self.alpha[0]

    def on_mlp(self, branch_BND: Tensor, call: Call) -> Tensor:
        """Scale the branch, by the same number where there is only one."""
        return branch_BND * self.alpha[-1]

    def fold(self, site: Site) -> None:
        """Into both branches."""
        fold_scales(site, self.alpha[0], self.alpha[-1])

    def folds_into(self, site: Site) -> Iterable[nn.Parameter]:
        """What ends both branches."""
        return folded_scales(site)

    def why_not_foldable(self) -> str | None:
        """Dropped norms cannot be written into weights."""
        return "it drops the norms, and no weights make a norm do nothing" if self.drops else None

    def adopt(self, state: dict[str, Any], prefix: str, block_prefix: str, site: Site) -> None:
        """A plain checkpoint has weights of the norms, which wait until the norms come back."""
        super().adopt(state, prefix, block_prefix, site)
        take_norms_out(state, block_prefix, site, self.dropped)

    def effective(self, values: ValueProjection) -> ValueProjection:
        """H is multiplied by α."""
        return scaled_output(values, self.alpha[0].detach().to(values.w_o))

    def report(self) -> Mapping[str, float]:
        """α of both branches."""
        alpha = self.alpha.detach()
        return {"alpha of attention": float(alpha[0]), "alpha of the MLP": float(alpha[-1])}
