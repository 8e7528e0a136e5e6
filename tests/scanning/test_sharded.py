"""A model that FSDP2 has sharded over two processes is scanned and explained in place: the numbers of a whole one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import unsmooth
from tests.two_processes import in_two_processes
from unsmooth.models import load, value_projection, weight_hash

pytestmark = pytest.mark.timeout(900)

# Five texts in batches of two: three batches, so that in the second round one process has none.
PROGRAM = """
import json, sys, torch, torch.distributed as dist
from torch.distributed.fsdp import fully_shard
dist.init_process_group("gloo")
torch.set_num_threads(1)
import unsmooth
from unsmooth.models import load, value_projection

model = load(sys.argv[1])
for block in model.encoder.layer:
    fully_shard(block)
fully_shard(model)
model.train()

def state():
    whole = {name: (type(one).__name__, one.to_local().sum().item()) for name, one in model.named_parameters()}
    return whole, [(len(module._forward_hooks), module.training) for module in model.modules()]

unsmooth.models.find_anatomy(model)  # which runs it once
seen = []
block = model.encoder.layer[1]
handle = block.output.dense.register_forward_hook(lambda module, args, output: seen.append(tuple(output.shape)))
before = state()
texts = open("texts").read().split("\\n")
found = unsmooth.scan(model, texts, batch_size=2, progress=False, metrics=["mean_cosine", "effective_rank"],
                      sites=("residual", "mlp"), baseline=True)
after_scan = state()
handle.remove()
why = unsmooth.explain(model, texts, batch_size=5, progress=False)
result = {
    "same after scan": after_scan == before,
    "sharded after explain": state()[0] == before[0],
    "shard": model.encoder.layer[0].attention.self.value.weight.to_local().numel(),
    "seen": seen,
    "values": value_projection(model, 1).w_v.sum().item(),
    "verdicts": [layer.verdict for layer in why.layers],
    "margins": [layer.margin for layer in why.layers],
    "gains": [layer.gains is not None for layer in why.layers],
    "rebuilt": max(layer.rebuilt for layer in why.layers),
    "weights": why.manifest["model"]["weights_sha256"],
    "processes": found.manifest["processes"],
}
found.save(f"out{dist.get_rank()}")
open(f"result{dist.get_rank()}.json", "w").write(json.dumps(result))
try:
    unsmooth.scan(model, texts, progress=False, device="meta")
except unsmooth.UnsmoothError as error:
    open(f"error{dist.get_rank()}", "w").write(str(error))
"""


@pytest.fixture(scope="module")
def sharded(bert_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which two processes have left what they found."""
    from tests.conftest import TEXTS

    folder = tmp_path_factory.mktemp("sharded")
    (folder / "texts").write_text("\n".join(TEXTS))
    in_two_processes(PROGRAM, folder, [str(bert_folder)], timeout=840)
    return folder


def result(folder: Path, rank: int) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / f"result{rank}.json").read_text())
    return found


def test_scan_has_the_numbers_of_a_whole_model(sharded: Path, bert_folder: Path, texts: list[str]) -> None:
    model = load(str(bert_folder))
    alone = unsmooth.scan(
        model,
        texts,
        batch_size=2,
        progress=False,
        metrics=["mean_cosine", "effective_rank"],
        sites=("residual", "mlp"),
        baseline=True,
    )
    for rank in (0, 1):
        together = unsmooth.load_scan(sharded / f"out{rank}")
        for found, wanted in ((together, alone), (together.baseline, alone.baseline)):
            assert found is not None
            assert wanted is not None
            one, two = wanted.to_frame(), found.to_frame()
            assert list(one["sequences"]) == list(two["sequences"])
            np.testing.assert_allclose(two["mean"], one["mean"], atol=1e-6)
        assert together.manifest["data"] == json.loads(json.dumps(alone.manifest["data"]))
        assert together.manifest["model"]["weights_sha256"] == weight_hash(model)
        assert together.manifest["model"]["parameters"] == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("rank", [0, 1])
def test_hooks_see_whole_activations_and_leave_shards(sharded: Path, rank: int) -> None:
    found = result(sharded, rank)
    # Two rounds on each process: of three batches one process has two, the other one and one for company.
    assert len(found["seen"]) == 2
    assert all(shape[2] == 32 and shape[0] in (1, 2) for shape in found["seen"])
    assert found["same after scan"]
    assert found["sharded after explain"]
    assert found["shard"] == 32 * 32 // 2
    assert found["processes"] == 2


def test_explanation_of_gathered_weights(sharded: Path, bert_folder: Path, texts: list[str]) -> None:
    model = load(str(bert_folder))
    why = unsmooth.explain(model, texts, batch_size=5, progress=False)
    for found in (result(sharded, 0), result(sharded, 1)):
        assert found["values"] == pytest.approx(value_projection(model, 1).w_v.sum().item(), abs=1e-4)
        assert found["verdicts"] == [layer.verdict for layer in why.layers]
        np.testing.assert_allclose(found["margins"], [layer.margin for layer in why.layers], atol=1e-5)
        assert found["gains"] == [True] * 3
        assert found["rebuilt"] < 1e-5
        assert found["weights"] == weight_hash(model)


def test_sharded_model_is_not_moved(sharded: Path) -> None:
    message = (sharded / "error1").read_text()
    assert message.startswith("Expected a model in one place, to move it to meta but got one that is sharded by FSDP2.")


def test_parts_of_a_plain_model_are_not_sharded() -> None:
    from unsmooth.models.spread import is_sharded, is_spread

    assert not is_sharded(torch.nn.Linear(2, 2))
    assert not is_spread(torch.nn.Linear(2, 2))
