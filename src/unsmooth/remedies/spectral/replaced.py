"""The weights that a spectral remedy replaced, kept to be put back; no part of the model's state."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from unsmooth.errors import expected
from unsmooth.models.block_parts import part
from unsmooth.remedies.derived import put_weight
from unsmooth.remedies.site import Site
from unsmooth.remedies.spectral.slots import ValueSlots


class Replaced:
    """Value weights, output weight and output bias of one block as they were.

    A plain object: copied with the model, but not saved, trained or moved with it.
    """

    def __init__(self, site: Site, slots: ValueSlots) -> None:
        module = part(site.block, site.wiring.output)
        output = module._parameters["weight"]
        assert output is not None, "a projection has a weight"
        bias = module._parameters.get("bias")
        self.value_GED = slots.whole().clone()
        self.output: nn.Parameter = output
        self.bias: Tensor | None = None if bias is None else bias.detach().clone()

    @torch.no_grad()
    def put_back(self, site: Site, slots: ValueSlots) -> None:
        """Undo it all."""
        refuse_shards(slots)
        module = part(site.block, site.wiring.output)
        slots.write(self.value_GED)
        now = slots.parameter()  # the model may have been moved or cast
        put_weight(module, self.output_holding(self.output.data.to(device=now.device, dtype=now.dtype)))
        bias = module._parameters.get("bias")
        if self.bias is not None and bias is not None:
            bias.copy_(self.bias)

    def output_holding(self, weight: Tensor) -> nn.Parameter:
        """The parameter that was the output weight, with other numbers in it."""
        self.output.data = weight
        self.output.grad = None
        return self.output

    def now_is(self, value_GED: Tensor, output: Tensor, bias: Tensor | None) -> None:
        """Other weights were loaded: these are to be put back."""
        self.value_GED = value_GED.detach().clone()
        self.output.data = output.detach().clone()
        self.bias = None if bias is None else bias.detach().clone()


def refuse_shards(slots: ValueSlots) -> None:
    """A model that is spread over processes cannot get or lose parameters."""
    if slots.sharded():
        raise expected("whole weights", "sharded ones", "unsmooth.fold on a model that is not sharded")
