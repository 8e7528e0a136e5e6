"""Where a block keeps its value weights, in whatever they are fused with, also when they are sharded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate
from torch.multiprocessing.reductions import StorageWeakRef

from unsmooth.models.block_parts import part
from unsmooth.models.host import multiplier
from unsmooth.remedies.site import Site, is_conv1d
from unsmooth.remedies.together import copy_all


class ValueSlots:
    """The value weights of one block.

    A plain object, so that the module it points to is not registered a second time, and so that the copy in a copied
    model points into that model.
    """

    def __init__(self, site: Site) -> None:
        self.module = part(site.block, site.wiring.weights.value)
        self.name = site.wiring.weights.value_weight
        self.layout = site.wiring.weights.layout
        self.heads = site.wiring.weights.heads
        self.group = site.wiring.weights.group
        self.stored_in_out = is_conv1d(self.module)

    @property
    def width(self) -> int:
        """Columns of V: value heads times their width."""
        return self.heads.key_value * self.heads.dim

    def parameter(self) -> Tensor:
        """The parameter they are in."""
        found: Tensor = getattr(self.module, self.name)
        return found

    def exact_dtype(self) -> torch.dtype:
        """In which they are worked on: float32 or better."""
        return torch.promote_types(self.parameter().dtype, torch.float32)

    def sharded(self) -> bool:
        """Whether this process holds only a part of them."""
        return isinstance(self.parameter(), DTensor)

    def mark(self) -> tuple[Any, ...]:
        """Differs as soon as they were written to, replaced, moved or cast, also by ``parameter.data = other``.

        Not when somebody writes into ``parameter.data`` in place: torch counts no such write, and to look at the
        numbers would wait for the device in every pass.
        """
        weight = self.parameter()
        return id(weight), weight._version, weight.dtype, weight.device, _memory_of(weight)

    def rows(self) -> Tensor:
        """(G, E, D) as a view of the parameter, through which gradients flow."""
        return self.rows_of(self.parameter())

    def rows_of(self, weight: Tensor) -> Tensor:
        """(G, E, D) as a view of a weight laid out like the parameter."""
        weight_DF = weight if self.stored_in_out else weight.mT
        return self.layout.values(weight_DF, self.heads).movedim(0, -1)

    def whole(self) -> Tensor:
        """(G, E, D) without gradients, gathered from all processes where they are sharded."""
        weight = self.parameter().detach()
        return self.rows_of(weight.full_tensor() if isinstance(weight, DTensor) else weight)

    def write(self, rows: Tensor) -> None:
        """Put rows (G, E, D), or (M, D), in their place."""
        write_all([self], [rows])

    def per_query_head(self, rows_GED: Tensor) -> Tensor:
        """Output weights (query heads · E, D) from one set per value head: all heads of a group get the same."""
        if self.group > 1:
            rows_GED = rows_GED.unsqueeze(1).expand(-1, self.group, -1, -1)
        return rows_GED.flatten(0, -2)

    def _write_shard(self, rows: Tensor) -> None:
        sharded = self.parameter().detach()
        assert isinstance(sharded, DTensor)
        full = sharded.full_tensor()
        place = self.rows_of(full)
        place.copy_(rows.reshape(place.shape))
        # Every process has the whole now, so cutting it up again needs no communication.
        mesh = sharded.device_mesh
        again = DTensor.from_local(full, mesh, [Replicate()] * mesh.ndim, run_check=False)
        sharded.to_local().copy_(again.redistribute(placements=sharded.placements).to_local())


class BranchGain:
    """What multiplies the attention branch of one block before it is added: a LayerScale γ, a number, or both.

    Relative to what the block multiplies the stream by.

    Args:
        site: The block; a plain object, as `ValueSlots` is.
    """

    def __init__(self, site: Site) -> None:
        self.block, self.keeps = site.block, site.wiring.keeps[0]
        # ax + f(x) is x + f(x)/a but for its size.
        self.scale = site.wiring.scales[0] / (1.0 if isinstance(self.keeps, str) else self.keeps)
        self.times = "" if site.wiring.gains is None else site.wiring.gains[0]

    def now(self) -> Tensor | float | None:
        """(dim,) or a number, through which gradients flow; None where nothing is multiplied."""
        if not self.times:
            return None if self.scale == 1.0 else self.scale
        gain = torch.as_tensor(multiplier(self.block, self.times))
        return self.scale * (gain.full_tensor() if isinstance(gain, DTensor) else gain)

    def loaded(self, state: Mapping[str, Any], prefix: str) -> Tensor | float | None:
        """What it will be once a checkpoint of the block is loaded, whose keys begin with `prefix`."""
        path = self.times.removeprefix("tanh ")
        gain: Tensor | None = state.get(prefix + path)
        if gain is None:
            return self.now()
        return self.scale * (gain if path == self.times else gain.tanh()).flatten()

    def refusal(self) -> str | None:
        """Why no output weight makes up for it; None where one does."""
        if isinstance(self.keeps, str):
            return f"it multiplies the stream by {self.keeps!r}, so that eigenvalues of H alone do not say what grows"
        gain = self.now()
        if gain is None or bool((1.0 / torch.as_tensor(gain)).isfinite().all()):
            return None
        what = f"its γ {self.times!r} has zeros" if self.times else "it multiplies its attention branch by zero"
        return f"{what}, behind which no output weight gives H an eigenvalue"


def _memory_of(weight: Tensor) -> tuple[Any, ...] | None:
    """Where its numbers lie, None where there is no such place.

    A weak reference, not an address: it keeps nothing alive, and is not that of other memory at the same address later.
    """
    try:
        return StorageWeakRef(weight.untyped_storage()), weight.storage_offset()  # type: ignore[no-untyped-call]
    except NotImplementedError:  # inside a transform of torch.func
        return None


@torch.no_grad()
def write_all(slots: list[ValueSlots], rows: list[Tensor]) -> None:
    """Put value weights of many layers in their places, in as few kernels as their layouts allow."""
    if any(one.sharded() for one in slots):
        for one, new in zip(slots, rows, strict=True):
            one._write_shard(new)
        return
    places = [one.rows_of(one.parameter()) for one in slots]
    copy_all(places, [new.reshape(place.shape) for place, new in zip(places, rows, strict=True)])


def random_orthonormal(slots: ValueSlots) -> Tensor:
    """Random value weights (M, D) with orthonormal rows, in float32 or better."""
    like = slots.whole().flatten(0, 1)
    rows_MD = torch.empty(like.shape, dtype=slots.exact_dtype(), device=like.device)
    return nn.init.orthogonal_(rows_MD)
