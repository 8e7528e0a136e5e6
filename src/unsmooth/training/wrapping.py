"""A model over several processes: a copy on each (DDP), or a share of its weights on each (FSDP2)."""

from __future__ import annotations

from torch import nn
from torch.distributed.fsdp import fully_shard
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
    return DistributedDataParallel(model, device_ids=devices)
