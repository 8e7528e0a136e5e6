r"""Registers (Darcet et al. 2023, "Vision Transformers Need Registers", arXiv 2309.16588): tokens to think with.

.. math:: X \leftarrow [X; R] \text{ before the first block}, \qquad [X; R] \leftarrow X \text{ after the last}

R are r learned tokens that every token can write to and read from, and that nobody sees outside: what large ViTs
otherwise keep in patches of background, massive and alike, has a place of its own. They stand behind all other tokens,
so that each of those keeps its place; attention without positions of its own does not mind. They start normal with a
standard deviation of 1e-6, as in the authors' DINOv2 and in timm; r = 4 is common.

Scans do not count them, and attention maps and explanations with data, which would have to, are refused. Other remedies
in the same blocks take them for tokens like any other. ``output_hidden_states=True`` shows them between the blocks.

Neutral at ``count=0``. For encoders, and batches without padding or masks: blocks are handed their mask from outside,
with a place for each token that there is. Blocks must follow each other. Remedies by which blocks hand each other
what they made of every token (`dlcl`, `neutreno`, `value_residual`) have to be in blocks that all have the same
registers, or none. Causal: refused, since no token would see them. Cost: that of r more tokens.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor, nn

from unsmooth.errors import expected
from unsmooth.remedies.base import CausalForm, Edit, remedy
from unsmooth.remedies.call import Call
from unsmooth.remedies.site import Site
from unsmooth.spec import Range

# Told to a block, these have a place for every token that there is.
_BY_TOKEN = ("position_bias", "position_embeddings", "relative_pos", "alibi", "rope")


@remedy
class Registers(Edit):
    """Append learned tokens before the first block and drop them after the last.

    Example:
        >>> import unsmooth
        >>> layer = nn.TransformerEncoderLayer(4, nhead=2, batch_first=True)
        >>> model = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        >>> _ = unsmooth.apply(model, "registers", count=2)
        >>> model(torch.randn(1, 5, 4)).shape, model.layers[0].unsmooth.registers.tokens.shape
        (torch.Size([1, 5, 4]), torch.Size([2, 4]))
    """

    name = "registers"
    summary = "learned tokens are added before the first block and dropped after the last"
    paper = "Darcet et al. 2023, arXiv 2309.16588"
    equation = "X ← [X; R] before the first block, [X; R] → X after the last"
    neutral: ClassVar[Mapping[str, Any] | None] = {"count": 0}
    causal: ClassVar[CausalForm] = "none"
    cost = "that of the tokens"
    options: ClassVar[Mapping[str, str]] = {
        "count": "r, how many, 0 to 1024",
        "std": "standard deviation of the normal numbers they start with, 0 to 10",
    }

    tokens: nn.Parameter | None

    def __init__(
        self, site: Site, *, count: Annotated[int, Range(0, 1024)] = 4, std: Annotated[float, Range(0.0, 10.0)] = 1e-6
    ) -> None:
        super().__init__(site)
        self.count, self.std = count, std
        self.drops = False
        # Only the first block has them: see `arrange`.
        self.register_parameter("tokens", None)

    @classmethod
    def refusal(cls, site: Site, options: Mapping[str, Any]) -> str | None:
        """Where more tokens have no place, or nobody would see them."""
        if site.causal:
            return "its tokens see only what is before them, and so none would see tokens behind the last"
        if site.wiring.windowed:
            return "its attention works inside windows of the image, and the tokens would be in none"
        if site.host.depth({site.path: site.block}) > 1:
            return "one block is called again and again, so that none is the first or the last"
        told = [name for name in inspect.signature(site.block.forward).parameters if name in _BY_TOKEN]
        return f"it is told {told[0]!r} from outside, which has no place for more tokens" if told else None

    @classmethod
    def arrange(cls, edits: Sequence[Edit], sites: Sequence[Site]) -> None:
        """The first block gets the tokens, the last one drops them."""
        found = [edit for edit in edits if isinstance(edit, Registers)]
        indices = [site.index for site in sites]
        if indices != list(range(indices[0], indices[-1] + 1)):
            raise expected("layers that follow each other", f"layers={indices}", f"layers=slice(0, {indices[-1] + 1})")
        first, last = found[0], found[-1]
        if first.count:
            tokens_RD = torch.empty(first.count, sites[0].dim, **sites[0].like_weights())
            first.tokens = nn.Parameter(nn.init.normal_(tokens_RD, std=first.std))
        last.drops = True

    @property
    def extra_inside(self) -> int:
        """Tokens of its own inside its block, behind all others."""
        return self.count

    @property
    def extra_left(self) -> int:
        """Those in what the block hands on."""
        return 0 if self.drops else self.count

    def places(self) -> tuple[str, ...]:
        """At the entrance of the first block, and at the exit of the last."""
        adds = ("on_entering",) if self.tokens is not None else ()
        return (*adds, "on_leaving") if self.drops and self.count else adds

    def on_entering(self, stream_BND: Tensor, call: Call) -> Tensor:
        """Append them."""
        if call.masked or call.real_BN is not None:
            raise expected(
                "a batch without padding or masks for registers, since a mask has no place for them",
                "a mask",
                'texts of one length, attn_implementation="sdpa", or unsmooth.undo(model)',
            )
        assert self.tokens is not None, "only the block that has them is asked"
        tokens_BRD = self.tokens.to(stream_BND.dtype).expand(stream_BND.shape[0], -1, -1)
        return torch.cat([stream_BND, tokens_BRD], dim=1)

    def on_leaving(self, out_BND: Tensor, call: Call) -> Tensor:
        """Drop them."""
        # A copy: FSDP2 warns of blocks that return views.
        return out_BND[:, : -self.count].clone(memory_format=torch.contiguous_format)

    def why_not_foldable(self) -> str | None:
        """Tokens are not weights."""
        return "the model itself has no place for tokens of a remedy"
