from __future__ import annotations

from pathlib import Path

import pytest
import torch

import unsmooth
from tests.remedies.by_hand import EVERY, Edits, by_hand, exact, gradients_near, near, streams
from tests.remedies.hosts import BY_NAME
from tests.remedies.snapshot import Snapshot
from unsmooth.models.value_projection import value_projection


def scaled(s: float) -> Edits:
    return Edits(first=lambda x, a: x + s * a, second=lambda x, m, bottom: x + s * m)


@pytest.mark.parametrize("name", EVERY)
def test_both_branches_are_scaled_and_fold(name: str) -> None:
    wanted = by_hand(name, exact(name), scaled(0.5773502691896258))  # 1/√3: three layers, or calls of ALBERT's one
    model = unsmooth.apply(exact(name), "residual_scaling")
    near(name, streams(name, model)[1], wanted)
    plain = exact(name)
    unsmooth.fold(model)
    near(name, streams(name, model)[1], wanted)
    plain.load_state_dict(model.state_dict())
    assert torch.equal(streams(name, plain)[1], streams(name, model)[1])


@pytest.mark.parametrize("name", ["bert", "gpt2", "neox_parallel"])
def test_gradients(name: str) -> None:
    gradients_near(name, unsmooth.apply(exact(name), "residual_scaling", scale=0.3), exact(name), scaled(0.3))


def test_some_layers_are_scaled_by_the_depth_of_all() -> None:
    wanted = by_hand("gpt2", exact("gpt2"), [Edits(), scaled(3**-0.5), Edits()])
    model = unsmooth.apply(exact("gpt2"), "residual_scaling", layers=[1])
    near("gpt2", streams("gpt2", model)[1], wanted)


@pytest.mark.parametrize("name", EVERY)
def test_neutral_and_undo(name: str) -> None:
    model = exact(name)
    before, plain = Snapshot.of(model), streams(name, model)[1]
    unsmooth.apply(model, "residual_scaling", scale=1.0)
    assert torch.equal(streams(name, model)[1], plain)
    before.check(unsmooth.undo(model))


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_a_folded_model_is_saved_and_loaded_by_its_library(name: str, tmp_path: Path) -> None:
    host = BY_NAME[name]
    model = unsmooth.apply(host.model(), "residual_scaling")
    call = host.call(host.inputs())
    with torch.no_grad():
        wanted = host.output(model, call)
        unsmooth.fold(model).save_pretrained(tmp_path)
        loaded = type(model).from_pretrained(tmp_path).eval()
        torch.testing.assert_close(host.output(loaded, call), wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["bert", "llama", "neox_parallel"])
def test_whoever_explains_sees_h_and_its_drift_scaled(name: str) -> None:
    plain, model = exact(name), unsmooth.apply(exact(name), "residual_scaling", scale=0.25)
    was, now = value_projection(plain, 0), value_projection(model, 0)
    torch.testing.assert_close(now.summed(), 0.25 * was.summed())
    torch.testing.assert_close(now.head(2), 0.25 * was.head(2))
    if was.drift() is not None:
        torch.testing.assert_close(now.drift(), 0.25 * was.drift())
