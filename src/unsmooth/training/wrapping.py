"""A model over several processes: a copy on each (DDP), or a share of its weights on each (FSDP2)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from unsmooth.models import find_anatomy
from unsmooth.training.config import Config
from unsmooth.training.place import Place


def wrapped(model: nn.Module, config: Config, place: Place) -> nn.Module:
    """`model` as this process is to train it; the model itself where there is only one process."""
    if place.ranks == 1:
        return model
    if config.engine.sharding == "shard":
        for block in find_anatomy(model).blocks.values():
            fully_shard(block)
        fully_shard(model)
        return model
    devices = [place.device] if place.device.type == "cuda" else None
    # Buffers need not be sent around: they follow from the weights, which are the same on every process.
    return DistributedDataParallel(model, device_ids=devices, broadcast_buffers=False)


@contextmanager
def gathered(model: nn.Module) -> Iterator[None]:
    """Whole weights on every process while the context is open, so that each may run the model, or read it, by itself.

    What is written to them meanwhile is forgotten. A model that is not sharded is left as it is.
    """
    shards = [module for module in model.modules() if isinstance(module, FSDPModule)]
    for module in shards:
        module.set_reshard_after_forward(False, recurse=False)
        module.unshard()
    try:
        yield
    finally:
        for module in shards:
            # As `fully_shard` sets it: the outermost, whose weights are needed first in the backward pass, stays whole.
            module.set_reshard_after_forward(module is not model, recurse=False)
            module.reshard()


def whole_state(model: nn.Module) -> dict[str, Tensor]:
    """The model's tensors, each whole and on the CPU; every process has to call this."""
    return {
        name: (value.full_tensor() if isinstance(value, DTensor) else value).detach().cpu()
        for name, value in model.state_dict().items()
        if isinstance(value, Tensor)
    }
