r"""Where the norms stand: pre-norm blocks (Xiong et al. 2020, arXiv 2002.04745) made post-norm, or the other way round.

.. math:: \text{pre: } x \leftarrow x + f(\mathrm{LN}\,x) \qquad \text{post: } x \leftarrow \mathrm{LN}(x + f(x))

The norms keep their weights and stand elsewhere, so a trained model forgets what it knows: for training from the start.
What follows the last block is not the blocks'. ``to="post"`` leaves a final norm there, which norms what the last block
has normed: with weights of one and no bias that changes nothing. ``to="pre"`` lets an unnormed stream out of the last
block, so, where that block is among those changed, it is given a final norm of its own (``final="add"``), of the kind
and with the eps of the others; ``final="none"`` for a model that has one already.

Only for blocks that can be told where their norms stand: those of `unsmooth.networks`, and torch's encoder layers. In
others it is written into their code. Other remedies act on norms where they stand, so this one has to come first. The
first layers post-norm and the rest pre-norm, by `layers`, is Mix-LN (Li, Yin & Liu 2024, arXiv 2412.13795).

No neutral setting. Causal: nothing looks across tokens. Cost: none, but for the final norm.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from torch import Tensor

from unsmooth.models.value_projection import ValueProjection
from unsmooth.remedies.base import CausalForm, Edit, remedy
from unsmooth.remedies.block import remedies_of
from unsmooth.remedies.call import Call
from unsmooth.remedies.norms import AddedNorm
from unsmooth.remedies.site import Site


@remedy
class NormPlace(Edit):
    """Put the norms of a block in front of its branches, or after the additions.

    Example:
        >>> import torch, unsmooth
        >>> layer = torch.nn.TransformerEncoderLayer(4, nhead=2, batch_first=True)
        >>> model = torch.nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        >>> _ = unsmooth.apply(model, "norm_place", to="pre")
        >>> [block.norm_first for block in model.layers], list(model.layers[2].unsmooth.norm_place.state_dict())
        ([True, True, True], ['final.weight', 'final.bias'])
    """

    name = "norm_place"
    summary = "pre-norm blocks become post-norm, or post-norm blocks pre-norm"
    paper = "Xiong et al. 2020, arXiv 2002.04745"
    equation = "x + f(LN x) ↔ LN(x + f(x))"
    causal: ClassVar[CausalForm] = "unchanged"
    cost = "none, but for a final norm in front of which pre-norm blocks end"
    options: ClassVar[Mapping[str, str]] = {
        "to": "'post' or 'pre': what the blocks become",
        "final": "with to='pre': 'add' a norm to the end of the last block, or 'none'",
    }

    def __init__(
        self, site: Site, *, to: Literal["post", "pre"] = "post", final: Literal["add", "none"] = "add"
    ) -> None:
        super().__init__(site)
        self.to_post = to == "post"
        last = site.index == site.depth - 1
        self.final = AddedNorm(site) if last and final == "add" and not self.to_post else None

    @classmethod
    def refusal(cls, site: Site, options: Mapping[str, Any]) -> str | None:
        """Where the block cannot be told, or has been changed."""
        if site.wiring.switch is None:
            return 'where its norms stand is written into its code; unsmooth.networks takes norm="pre" or "post"'
        if site.wiring.style == options.get("to"):
            return "its norms stand there already"
        home = remedies_of(site.block)
        others = [] if home is None else list(home.edits())
        return f"{others[0]} acts on its norms where they stand: norm_place comes first" if others else None

    def places(self) -> tuple[str, ...]:
        """At the end of the last block."""
        return () if self.final is None else ("on_block",)

    def install(self, site: Site) -> None:
        """Tell the block."""
        self._tell(site, post=self.to_post)

    def remove(self, site: Site) -> None:
        """Tell it that all is as before."""
        self._tell(site, post=not self.to_post)

    def on_block(self, out_BND: Tensor, call: Call) -> Tensor:
        """The final norm."""
        assert self.final is not None, "or it would not act here"
        normed: Tensor = self.final(out_BND)
        return normed

    def why_not_foldable(self) -> str | None:
        """It is no matter of weights."""
        return "no weights move a norm"

    def effective(self, values: ValueProjection) -> ValueProjection:
        """They were read with the norm where it stands now."""
        return dataclasses.replace(values)

    def _tell(self, site: Site, post: bool) -> None:
        assert site.wiring.switch is not None, "refused where there is none"
        attribute, for_pre, for_post = site.wiring.switch
        setattr(site.block, attribute, for_post if post else for_pre)
