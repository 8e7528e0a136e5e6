"""Two processes: copies (DDP) and shards (FSDP2)."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.monitor.training import DIM, TOKENS, make
from tests.two_processes import in_two_processes
from unsmooth import Monitor

PROGRAM = """
import json, sys, torch, torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
import unsmooth
from tests.monitor.training import DIM, TOKENS, hooks, make

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()


def run(kind, monitored, probe, remedy):
    model = make()
    if remedy:
        unsmooth.apply(model, remedy)
    wrapped = model
    if kind == "ddp":
        wrapped = DistributedDataParallel(model)
    else:
        for layer in model.encoder.layers:
            fully_shard(layer)
        fully_shard(model)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2)
    batch = None if probe is None else torch.load("batch.pt")[2 * rank : 2 * rank + 2]
    out = f"{kind} {probe} {remedy}"
    monitor = unsmooth.Monitor(wrapped, every=2, probe=batch, out=out, name=out) if monitored else None
    if monitor:
        monitor.begin()
    wrapped.train()
    for step in range(4):
        torch.manual_seed(10 * step + rank)
        wrapped(torch.randn(4, TOKENS, DIM)).square().mean().backward()
        if monitor and step % 2:
            monitor.step()  # also between gradients and the optimiser's step
        optimiser.step()
        optimiser.zero_grad()
        if monitor and step % 2 == 0:
            monitor.step()
    if monitor:
        monitor.close()
        assert monitor.last.step == 4, "no reading"
        assert hooks(model) == before_hooks(kind), "hooks"
    state = [one.full_tensor() if hasattr(one, "full_tensor") else one for one in model.state_dict().values()]
    first = monitor.last if monitor else None
    return [one.detach().clone() for one in state], first


def before_hooks(kind):
    return len_of[kind]


len_of = {}
for kind in ("ddp", "fsdp"):
    model = make()
    if kind == "fsdp":
        for layer in model.encoder.layers:
            fully_shard(layer)
        fully_shard(model)
    len_of[kind] = hooks(model)
found = {}
for kind, probe, remedy in (
    ("ddp", "given", None),
    ("ddp", None, None),
    ("fsdp", "given", None),
    ("fsdp", None, None),
    ("fsdp", "given", "sharpen"),
):
    if remedy:
        len_of = dict.fromkeys(len_of, None)
        before_hooks = lambda kind: hooks_now
        probe_model = unsmooth.apply(make(), remedy)
        for layer in probe_model.encoder.layers:
            fully_shard(layer)
        fully_shard(probe_model)
        hooks_now = hooks(probe_model)
    without, _ = run(kind, False, probe, remedy)
    weights, last = run(kind, True, probe, remedy)
    equal = all(torch.equal(one, other) for one, other in zip(weights, without, strict=True))
    found[f"{kind} {probe} {remedy}"] = {"equal": equal, "last": [row.mean for row in last.curve("mean_cosine")]}
with open(f"{rank}.json", "w") as file:
    json.dump(found, file)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("processes")
    torch.manual_seed(3)
    torch.save(torch.randn(4, TOKENS, DIM), made / "batch.pt")
    in_two_processes(PROGRAM, made)
    return made


CASES = ("ddp given None", "ddp None None", "fsdp given None", "fsdp None None", "fsdp given sharpen")


@pytest.mark.parametrize("case", CASES)
def test_the_same_bits_on_both_processes(folder: Path, case: str):
    first, second = (json.loads((folder / f"{rank}.json").read_text())[case] for rank in range(2))
    assert first["equal"]
    assert second["equal"]
    assert first["last"] == second["last"]


@pytest.mark.parametrize("case", ["ddp given None", "fsdp given None"])
def test_the_numbers_are_those_of_one_process_with_the_whole_batch(folder: Path, case: str):
    from unsmooth.monitor import read_watched

    found = read_watched(folder / case)
    assert [reading.step for reading in found.readings] == [0, 2, 4]
    assert found.about["processes"] == 2
    with Monitor(make(), probe=torch.load(folder / "batch.pt"), sinks=()) as monitor:
        alone = [row.mean for row in monitor.last.curve("mean_cosine")]
    np.testing.assert_allclose([row.mean for row in found.readings[0].curve("mean_cosine")], alone, rtol=1e-5)
    assert found.readings[0].rows[0].sequences == 4
