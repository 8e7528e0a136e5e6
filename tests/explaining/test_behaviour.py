"""`explain` as a user meets it: every family, every precision, and nothing changed behind the user's back."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

from tests.explaining.seeing import BY_NAME, encoder, found, numbers, set_values, streams
from tests.explaining.test_observe import hooks
from tests.models.entries import ENTRIES
from tests.models.entry import Entry
from unsmooth.explaining import TIERS


def families() -> list[Any]:
    """One model of each at once; the others take the same ways, and are left to `make slow`."""
    met = set[str]()
    chosen = []
    for entry in ENTRIES:
        family = entry.name.partition("-")[0]
        chosen.append(pytest.param(entry, id=entry.name, marks=pytest.mark.slow if family in met else ()))
        met.add(family)
    return chosen


@pytest.mark.parametrize("entry", families())
def test_every_family_is_explained_whole(entry: Entry) -> None:
    batch = entry.batch(entry.paddings[0])
    explanation = found(entry.model(), [batch])
    assert explanation.notes == ()
    assert len(explanation.layers) == entry.calls
    for layer in explanation.layers:
        assert layer.place == ("post" if entry.style == "post" else "pre")
        assert set(layer.predicted) == set(TIERS)
        assert layer.gains is not None
        assert layer.breakdown is not None
        assert layer.rest_modulus is not None
        assert layer.eigenvalues
    values = list(numbers((*explanation.layers, *explanation.heads)))
    assert len(values) > 50
    assert not any(map(math.isnan, values))
    assert explanation.growth is not None
    assert math.isfinite(explanation.growth.margin)
    assert {one.layers for one in explanation.skills} == {entry.calls}
    without = found(entry.model())
    assert all(layer.verdict in ("smoothing", "sharpening", "preserving", "undecided") for layer in without.layers)
    assert not any(math.isnan(layer.margin) for layer in without.layers)
    # A block that is called several times is one block to weights, and several layers to data.
    assert len(without.layers) == len({layer.block for layer in explanation.layers})


def test_nothing_is_changed() -> None:
    entry = BY_NAME["gpt2-tiny"]
    model = entry.model().train()
    model.h[1].eval()
    model.config.use_cache = True
    batch = entry.batch("right")
    kept = {name: value.clone() for name, value in batch.items()}
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    torch.manual_seed(11)
    chance = torch.get_rng_state()
    grad = torch.is_grad_enabled()
    first = found(model, batch)
    assert torch.equal(torch.get_rng_state(), chance)
    assert torch.is_grad_enabled() == grad
    assert all(torch.equal(batch[name], value) for name, value in kept.items())
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
    assert [module.training for module in model.modules()] == modes
    assert all(parameter.grad is None for parameter in model.parameters())
    assert model.config.use_cache is True
    assert hooks(model) == 0
    assert repr(found(model, batch).layers) == repr(first.layers), "the same question has the same answer"


def test_dropout_plays_no_part() -> None:
    model = encoder(dropout=0.5)
    assert repr(found(model.train(), streams()).layers) == repr(found(model.eval(), streams()).layers)


def test_everything_is_put_back_after_an_error() -> None:
    model = encoder().train()

    def fail(module: nn.Module, args: object) -> None:
        raise ValueError("boom")

    handle = model.layers[1].register_forward_pre_hook(fail)
    with pytest.raises(ValueError, match="boom"):
        found(model, streams())
    handle.remove()
    assert hooks(model) == 0
    assert all(module.training for module in model.modules())
    assert torch.backends.mha.get_fastpath_enabled()


def test_a_device_is_where_it_is_moved_and_back() -> None:
    model, places = encoder(), []
    handle = model.register_forward_pre_hook(lambda module, args: places.append(args[0].device.type))
    assert repr(found(model, streams(), device="cpu").layers) == repr(found(model, streams()).layers)
    handle.remove()
    assert set(places) == {"cpu"}
    assert {parameter.device.type for parameter in model.parameters()} == {"cpu"}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize(
    "name", ["bert-tiny", "gpt2-tiny", "gemma-gemma2", "bloom-tiny", "torch_encoder-pre-batch-first"]
)
def test_a_gpu_says_what_the_cpu_says(name: str) -> None:
    entry = BY_NAME[name]
    model, batch = entry.model(), entry.batch("right")
    here, there = found(model, batch), found(model, batch, device="cuda")
    assert {parameter.device.type for parameter in model.parameters()} == {"cpu"}
    assert there.notes == here.notes == ()
    for one, other in zip(here.layers, there.layers, strict=True):
        assert other.measured == pytest.approx(one.measured, abs=1e-4)
        assert other.mean_modulus == pytest.approx(one.mean_modulus, rel=1e-3)
        assert other.rest_modulus == pytest.approx(one.rest_modulus, rel=1e-2)
        assert dict(other.predicted) == pytest.approx(dict(one.predicted), abs=1e-2)
        assert one.gains is not None
        assert other.gains is not None
        assert vars(other.gains) == pytest.approx(vars(one.gains), rel=1e-2, abs=1e-3)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_precisions_say_the_same(dtype: torch.dtype) -> None:
    model = set_values(encoder(), 0.5)
    wanted = found(model, streams())
    other = found(model.to(dtype), streams().to(dtype))
    assert other.notes == ()
    for one, two in zip(wanted.layers, other.layers, strict=True):
        assert two.verdict == one.verdict
        assert two.measured == pytest.approx(one.measured, abs=0.01)
        assert two.mean_modulus == pytest.approx(one.mean_modulus, rel=0.02)
        assert one.gains is not None
        assert two.gains is not None
        # In float64 the random start is another one.
        assert two.gains.mean == pytest.approx(one.gains.mean, rel=0.15)
        assert two.gains.rest == pytest.approx(one.gains.rest, rel=0.15)


def test_equal_tokens_stay_equal_and_are_said_to() -> None:
    x = torch.arange(8.0).expand(2, 5, 8)
    explanation = found(encoder(layers=1), x)
    (layer,) = explanation.layers
    assert layer.similarity_before == pytest.approx(1.0)
    assert layer.similarity_after == pytest.approx(1.0)
    assert layer.escalation == pytest.approx(0.0, abs=1e-6)
    assert not any(map(math.isnan, numbers((*explanation.layers, *explanation.heads))))


def test_texts_and_a_name_for_the_model(bert_folder: Any, texts: list[str]) -> None:
    explanation = found(str(bert_folder), texts, max_batches=1, name="tiny")
    assert explanation.name == "tiny"
    assert explanation.sentence.startswith("tiny: measured, t_sim rises over")
    assert explanation.manifest["data"]["sequences"] == 4
    assert len(explanation.heads) == 12


def test_jacobians_only_where_asked_for() -> None:
    explanation = found(encoder(), streams(), jacobian=False)
    assert all(layer.gains is None for layer in explanation.layers)
    assert explanation.growth is None
