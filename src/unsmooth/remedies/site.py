"""Where in a model a remedy goes: one block, with its parts by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from unsmooth.errors import UnsmoothError
from unsmooth.models.block_parts import norm_at, part
from unsmooth.models.host import Host
from unsmooth.models.wiring import Wiring


@dataclass(frozen=True)
class Site:
    """One block of a model.

    Args:
        block: The block.
        path: Its path in the model.
        index: Its place among the model's blocks, from 0.
        depth: How many block calls one forward pass makes (more than there are blocks where they are shared).
        host: The family it is of.
        wiring: Its parts.
    """

    block: nn.Module
    path: str
    index: int
    depth: int
    host: Host
    wiring: Wiring

    @property
    def causal(self) -> bool | None:
        """Whether its tokens see only what is before them; None where that is said in each call."""
        return is_causal(part(self.block, self.wiring.attention), self.wiring)

    @property
    def branches(self) -> tuple[str, ...]:
        """The branches that are known, by their sites: attention, and the MLP and cross-attention where there are."""
        taps = self.host.taps(self.block)
        return tuple(name for name in ("attention", "mlp", "cross") if name in taps)

    @property
    def cross_end(self) -> str:
        """The linear map that ends the branch of cross-attention; "" where none is known."""
        try:
            return self.host.cross(self.block).output
        except UnsmoothError:
            return ""

    @property
    def dim(self) -> int:
        """Width of the stream."""
        return self.wiring.dim

    def value_places(self) -> Tensor:
        """Where the value weights are, (dim, key/value heads, head dim), to be written to."""
        weights = self.wiring.weights
        weight = as_in_out(part(self.block, weights.value), weights.value_weight)
        return weights.layout.values(weight.data, weights.heads)

    def why_not_written(self) -> str | None:
        """Why H cannot be given by value and output weights that are written; None where it can."""
        weights = self.wiring.weights
        between = weights.heads_norm or (None if weights.latent is None else weights.latent.norm)
        if weights.value_norm is not None and norm_at(self.block, weights.value_norm).weight is not None:
            between = weights.value_norm
        if between is not None:
            return f"a norm with weights, {between!r}, is between its value and its output weights, and a part of H"
        if weights.gate is not None and weights.gate.function != "sigmoid":
            return f"its heads are multiplied by a {weights.gate.function}, which may be past one, and so is H"
        if not 0.0 < weights.scale <= 1.0:
            return f"its values are multiplied by {weights.scale:.3g}, and so is H"
        return None

    def output_matrix(self) -> Tensor:
        """The output weights (query heads · head dim, dim)."""
        return as_in_out(part(self.block, self.wiring.weights.output), "weight")

    def weights_at(self, *paths: str) -> list[nn.Parameter]:
        """The parameters of the modules at these paths of the block, or those at them."""
        found = []
        for path in paths:
            parent, _, name = path.rpartition(".")
            own = self.block.get_submodule(parent)._parameters.get(name)
            found += list(part(self.block, path).parameters(recurse=False)) if own is None else [own]
        return found

    def like_weights(self) -> dict[str, Any]:
        """Dtype and device for new parameters: those of the block's own."""
        last = self.wiring.last
        known: Any = None if last is None else part(self.block, last)
        found = self.block.parameters() if known is None else (known.weight,)
        weight = max((one for one in found if one.dtype.is_floating_point), key=lambda one: one.ndim)
        return {"dtype": weight.dtype, "device": weight.device}


def is_causal(attention: nn.Module, wiring: Wiring) -> bool | None:
    """Whether an attention module is a decoder's; None where each call says so, as torch's own does."""
    if wiring.causal is not None:
        return wiring.causal
    if isinstance(attention, nn.MultiheadAttention):
        return None
    # Transformers lets the tokens of a decoder see all others where its configuration says so.
    both_ways = getattr(getattr(attention, "config", None), "is_causal", True) is False
    return bool(getattr(attention, "is_causal", False)) and not both_ways


def as_in_out(module: nn.Module, name: str) -> Tensor:
    """A weight as (in, out): nn.Linear stores (out, in), Conv1D (in, out)."""
    weight: Tensor = getattr(module, name)
    return weight if is_conv1d(module) else weight.mT


def is_conv1d(module: nn.Module) -> bool:
    """Whether it is GPT-2's Conv1D, a linear map stored the other way round."""
    return any(base.__name__ == "Conv1D" for base in type(module).__mro__)
