"""Models that accelerate has spread or offloaded are scanned and explained as they are: the numbers of a whole one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import unsmooth
from tests.models import test_hosts as hosts
from tests.models.entries import ENTRIES
from tests.models.test_anatomy import hooks_left
from unsmooth.errors import UnsmoothError
from unsmooth.models import value_projection, weight_hash, with_random_weights
from unsmooth.models.spread import home_of, is_spread

accelerate = pytest.importorskip("accelerate")
ENTRY = next(entry for entry in ENTRIES if entry.name == "mixtral-experts")
CPU = torch.device("cpu")


def in_memory(folder: Path) -> Any:
    """Every weight out of the way until its module runs."""
    return accelerate.cpu_offload(ENTRY.model(), execution_device=CPU)


def on_disk(folder: Path) -> Any:
    """Likewise, in files."""
    return accelerate.disk_offload(ENTRY.model(), str(folder), execution_device=CPU)


def by_device_map(folder: Path) -> Any:
    """Some blocks at hand, some in files."""
    places = {"embed_tokens": "cpu", "layers.0": "cpu", "layers.1": "disk", "layers.2": "disk", "norm": "cpu"}
    places["rotary_emb"] = "cpu"
    return accelerate.dispatch_model(ENTRY.model(), places, main_device="cpu", offload_dir=str(folder))


each_way = pytest.mark.parametrize("spread", [in_memory, on_disk, by_device_map])


@each_way
def test_numbers_of_a_whole_model(spread: Callable[[Path], Any], tmp_path: Path) -> None:
    model, whole, batch = spread(tmp_path), ENTRY.model(), ENTRY.batch("right")
    assert is_spread(model)
    assert home_of(model) == CPU
    kept = {name: parameter.device for name, parameter in model.named_parameters()}
    hooks = hooks_left(model)
    metrics = ["mean_cosine", "escalation_rate"]
    found, wanted = (unsmooth.scan(one, batch, metrics=metrics, progress=False) for one in (model, whole))
    np.testing.assert_array_equal(found.to_frame()["mean"], wanted.to_frame()["mean"])
    assert found.manifest["model"]["weights_sha256"] == weight_hash(whole)
    assert {name: parameter.device for name, parameter in model.named_parameters()} == kept
    assert hooks_left(model) == hooks


@each_way
def test_independent_hooks_agree(spread: Callable[[Path], Any], tmp_path: Path) -> None:
    model, batch = spread(tmp_path), ENTRY.batch("left")
    ours, theirs = hosts.observe(model, batch), hosts.observe_by_hand(ENTRY, model, batch)
    assert set(ours) == set(theirs)
    for place, tensor in theirs.items():
        assert torch.equal(ours[place], tensor), place


@each_way
def test_explained(spread: Callable[[Path], Any], tmp_path: Path) -> None:
    model, whole, batch = spread(tmp_path), ENTRY.model(), ENTRY.batch("right")
    for block in range(3):
        assert torch.equal(value_projection(model, block).w_v, value_projection(whole, block).w_v)
    found, wanted = (unsmooth.explain(one, batch, jacobian=False, progress=False) for one in (model, whole))
    assert found.notes == wanted.notes
    assert [layer.margin for layer in found.layers] == [layer.margin for layer in wanted.layers]


def test_random_baseline_is_whole(tmp_path: Path) -> None:
    fresh, wanted = (with_random_weights(one, seed=3) for one in (by_device_map(tmp_path), ENTRY.model()))
    pairs = zip(fresh.parameters(), wanted.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    assert not is_spread(fresh)


def test_device_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        UnsmoothError, match=r"in one place, to move it to meta but got one that is spread over devices"
    ):
        unsmooth.scan(in_memory(tmp_path), ENTRY.batch("right"), device="meta", progress=False)


def test_weights_that_are_nowhere_are_refused() -> None:
    model = ENTRY.model()
    model.layers[1].to("meta")
    with pytest.raises(UnsmoothError, match="a meta tensor without values"):
        value_projection(model, 1)


def test_model_without_weights_is_at_home_on_the_cpu() -> None:
    assert home_of(nn.Identity()) == CPU


def test_bfloat16_weights() -> None:
    model, batch = ENTRY.model().to(torch.bfloat16), ENTRY.batch("right")
    found = unsmooth.scan(model, batch, metrics=["mean_cosine"], tokens="all", progress=False)
    assert found.manifest["model"]["dtype"] == ["bfloat16"]
    theirs = hosts.observe_by_hand(ENTRY, model, batch)
    for row in found.curve("mean_cosine"):
        stream = theirs[row.layer, "residual"]
        assert stream.dtype == torch.bfloat16
        values = []
        for vectors, count in zip(stream.double().numpy(), (6, 4, 2), strict=True):
            unit = vectors[:count] / np.linalg.norm(vectors[:count], axis=-1, keepdims=True)
            values.append(((unit @ unit.T).sum() - count) / (count * (count - 1)))
        assert row.mean == pytest.approx(np.mean(values), abs=1e-6)
