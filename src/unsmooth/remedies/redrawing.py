"""What remedies share that write over weights once, when they are applied, and give them back when they are undone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from unsmooth.remedies.base import Edit
from unsmooth.remedies.site import Site


class Redrawing(Edit):
    """An edit that keeps the weights it writes over, as long as they are what lies below.

    A plain checkpoint that is loaded afterwards replaces what was written, and what was written over: undone, the model
    is the one that was loaded. So does a checkpoint without the buffers of this one, such as a copy of
    `named_parameters` alone, which nothing tells from a plain one.

    Args:
        site: The block.
        draws: Whether it writes at all, with its options.
    """

    def __init__(self, site: Site, draws: bool) -> None:
        super().__init__(site)
        self.kept: list[Tensor] = []
        if draws:
            # A part of the state, so that a checkpoint of this model is told from one of the plain model.
            self.register_buffer("drawn", torch.ones(1, device=site.like_weights()["device"]))

    def writes(self, site: Site) -> Iterable[nn.Parameter]:
        """Any, where it writes at all."""
        return site.block.parameters() if "drawn" in self._buffers else ()

    def keep(self, weights: Sequence[Tensor]) -> None:
        """Remember weights before they are written over."""
        self.kept = [weight.clone() for weight in weights]

    @torch.no_grad()
    def give_back(self, weights: Sequence[Tensor]) -> None:
        """Write what was kept into the same weights, unless something was loaded over them."""
        for weight, was in zip(weights, self.kept, strict=False):
            weight.copy_(was)

    def adopt(self, state: dict[str, Any], prefix: str, block_prefix: str, site: Site) -> None:
        """There is nothing below a plain checkpoint."""
        self.kept = []
        super().adopt(state, prefix, block_prefix, site)
