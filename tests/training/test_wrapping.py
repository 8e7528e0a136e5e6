from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import distributed as dist
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from tests.training.tiny_runs import tiny
from unsmooth.networks.saving import build
from unsmooth.training.place import Place
from unsmooth.training.resting import whole_state
from unsmooth.training.snapshot import put, unwrapped
from unsmooth.training.wrapping import wrapped

CPU = torch.device("cpu")


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Place]:
    """A group of one process, which is told that it is one of two."""
    dist.init_process_group("gloo", f"file://{tmp_path}/meet", rank=0, world_size=1)
    yield Place(CPU, 0, 2)
    dist.destroy_process_group()


def test_one_process_has_the_model_itself() -> None:
    model = build(tiny().network)
    assert wrapped(model, tiny(engine__sharding="shard"), Place(CPU)) is model
    assert unwrapped(model) is model


def test_copies(group: Place) -> None:
    model = build(tiny().network)
    found = wrapped(model, tiny(), group)
    assert isinstance(found, DistributedDataParallel)
    assert unwrapped(found) is model


def test_shards_are_cut_block_by_block_and_put_together(group: Place) -> None:
    model = build(tiny().network)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = wrapped(model, tiny(engine__sharding="shard"), group)
    assert unwrapped(found) is model
    blocks = [module for module in model.stack.blocks if isinstance(module, FSDPModule)]  # type: ignore[union-attr]
    assert len(blocks) == tiny().network.depth
    assert all(isinstance(one, DTensor) for one in found.parameters())
    whole = whole_state(found)
    assert whole.keys() == before.keys()
    assert all(torch.equal(whole[name], value) for name, value in before.items())


def test_whole_tensors_go_into_shards(group: Place) -> None:
    found = wrapped(build(tiny().network), tiny(engine__sharding="shard"), group)
    wanted = {name: torch.randn_like(value) for name, value in whole_state(found).items()}
    with torch.no_grad():
        for name, place in found.state_dict().items():
            put(place, wanted[name])
    whole = whole_state(found)
    assert all(torch.equal(whole[name], value) for name, value in wanted.items())


def test_what_one_process_says_all_say() -> None:
    place = Place(CPU)
    assert place.agree("here") == "here"
    assert place.agree(None) is None
    assert place.anywhere(True)
    assert not place.anywhere(False)
    assert int(place.lowest(torch.tensor(4))) == 4
