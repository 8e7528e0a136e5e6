"""How the weights of a network start, by name; from a seed alone, whatever the device and torch's own generator."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from unsmooth.networks.block import Attention
from unsmooth.networks.embedding import Positions
from unsmooth.registry import Registry

# Draws what a matrix of that shape starts as, on the CPU.
Draw = Callable[[torch.Size], Tensor]
INITS = Registry[Callable[[nn.Module, torch.Generator], None]]("initialisation")
# Under this name a block holds remedies, whose parameters are their own business.
_REMEDIES = "unsmooth"


def initialise(network: nn.Module, name: str, seed: int) -> None:
    """Give every weight of `network` its first value, in place.

    Norms start at 1, biases at 0.

    Args:
        network: One of ours.
        name: A name in `INITS`.
        seed: The same seed gives the same weights.

    Example:
        >>> layer = nn.Sequential(nn.Linear(4, 4))
        >>> initialise(layer, "xavier", seed=1)
        >>> before = layer[0].weight.clone()
        >>> initialise(layer, "xavier", seed=1)
        >>> torch.equal(layer[0].weight, before)
        True
    """
    with torch.no_grad():
        INITS[name](network, torch.Generator().manual_seed(seed))


class Initialised(nn.Module):
    """A network that knows how its weights start."""

    def start(self, seed: int) -> None:
        """Draw all weights, as the configuration says; on the meta device there are none to draw."""
        if any(parameter.is_meta for parameter in self.parameters()):
            return
        initialise(self, self.config.init, seed)  # type: ignore[union-attr, arg-type]

    def reset_parameters(self) -> None:
        """Draw all weights anew, with a seed from torch's generator."""
        self.start(int(torch.randint(1 << 31, ()).item()))


def parts_of(network: nn.Module) -> Iterator[nn.Module]:
    """Every module of a network that no remedy brought."""
    for name, module in network.named_modules():
        if _REMEDIES not in name.split("."):
            yield module


def _fill(network: nn.Module, draw: Draw, draw_table: Draw) -> None:
    """Matrices of linear maps by `draw`, tables of embeddings and tokens by `draw_table`; norms 1, biases 0."""
    for module in parts_of(network):
        for name, parameter in module.named_parameters(recurse=False):
            if isinstance(module, Positions) and name == "scale":
                parameter.fill_(module.table.shape[1] ** -0.5)
            elif parameter.ndim == 1:
                parameter.fill_(1.0 if isinstance(module, nn.LayerNorm) and name == "weight" else 0.0)
            elif isinstance(module, nn.Linear):
                parameter.copy_(draw(parameter.shape))
            else:
                parameter.copy_(draw_table(parameter.shape))


def _truncated(std: float, generator: torch.Generator) -> Draw:
    def draw(shape: torch.Size) -> Tensor:
        return nn.init.trunc_normal_(torch.empty(shape), std=std, a=-2 * std, b=2 * std, generator=generator)

    return draw


def truncated_normal(network: nn.Module, generator: torch.Generator) -> None:
    """Normal with standard deviation 0.02, cut off at two of them (as BERT, ViT and DeiT)."""
    draw = _truncated(0.02, generator)
    _fill(network, draw, draw)


def xavier(network: nn.Module, generator: torch.Generator) -> None:
    r"""Uniform in ±√(6/(in + out)) (Glorot & Bengio 2010); tables of embeddings as `truncated_normal`.

    Queries, keys and values are three matrices, although one product makes them.
    """

    def draw(shape: torch.Size) -> Tensor:
        bound = math.sqrt(6.0 / (shape[0] + shape[1]))
        return torch.empty(shape).uniform_(-bound, bound, generator=generator)

    _fill(network, draw, _truncated(0.02, generator))
    for module in parts_of(network):
        if isinstance(module, Attention):
            for part in module.qkv.weight.chunk(3):
                part.copy_(draw(part.shape))


INITS.add("truncated_normal", truncated_normal)
INITS.add("xavier", xavier)
