r"""What is set by hand in a network, for studies of causes: each knob moves one thing and leaves the others.

Branches are multiplied before they are added, the token mean of attention's output apart from the rest of it, and the
gradient that the head hands down on its way through the last layer; learning rates follow the layer.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor, nn


@dataclass(frozen=True)
class Knobs:
    """The knobs; None leaves things as they are.

    Attributes:
        branch: What both branches are multiplied by.
        token_mean: What the token mean of attention's output is multiplied by: 0 takes it out, as de-escalation does,
            and numbers above 1 make tokens more alike.
        head_gradient: What the gradient of the loss to the output of the last block is multiplied by. The head sees
            its own as it is, and the forward pass is the same.
        block_gradient: What the gradient is multiplied by on its way back through each block, the forward pass being
            the same: by depth the ratio of the first block's gradient to the last one's is that to the power of it.
        layer_rates: Of the first and of the last block: what their learning rates are multiplied by, in between in
            even ratios. That of embedding and head stays.
    """

    branch: float | None = None
    token_mean: float | None = None
    head_gradient: float | None = None
    block_gradient: float | None = None
    layer_rates: tuple[float, ...] | None = None

    def turn(self, network: nn.Module) -> None:
        """Have the blocks of one of our networks do so."""
        blocks: Any = network.stack.blocks  # type: ignore[union-attr]
        for block in blocks:
            if self.token_mean is not None:
                block.attention_path.register_forward_hook(partial(_more_mean, by=self.token_mean))
            if self.branch is not None:
                for path in (block.attention_path, block.mlp_path):
                    path.register_forward_hook(partial(_times, by=self.branch))
            if self.block_gradient is not None:
                block.register_forward_hook(partial(_less_gradient, by=self.block_gradient))
        if self.head_gradient is not None:
            blocks[-1].register_forward_hook(partial(_less_gradient, by=self.head_gradient))

    def rates(self, names: Iterable[str], depth: int) -> dict[str, float]:
        """What the learning rate of each parameter is multiplied by.

        >>> Knobs(layer_rates=(1.0, 0.01)).rates(["stack.blocks.1.mlp.up.weight", "head.weight"], 3)
        {'stack.blocks.1.mlp.up.weight': 0.1, 'head.weight': 1.0}
        """
        found = dict.fromkeys(names, 1.0)
        for name in found if self.layer_rates is not None else ():
            first, last = self.layer_rates or (1.0, 1.0)
            if name.startswith("stack.blocks."):
                share = int(name.split(".")[2]) / max(1, depth - 1)
                found[name] = first ** (1 - share) * last**share
        return found


def _times(module: nn.Module, args: Any, out: Tensor, *, by: float) -> Tensor:
    return out * by


def _more_mean(module: nn.Module, args: Any, out: Tensor, *, by: float) -> Tensor:
    return out + (by - 1) * out.mean(dim=1, keepdim=True)


def _less_gradient(module: nn.Module, args: Any, out: Tensor, *, by: float) -> Tensor:
    return out.detach() + by * (out - out.detach())
