"""A training with a monitor ends with the same bits as without."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch import nn

import unsmooth
from tests.monitor.training import BATCH, DIM, TOKENS, hooks, make, same, train
from unsmooth import Monitor

PROBES = {"first batch": "first", "given batch": torch.ones(3, TOKENS, DIM), "training passes": None}


@pytest.mark.parametrize("probe", PROBES.values(), ids=PROBES)
@pytest.mark.parametrize("every", [1, 2])
def test_the_weights_are_the_same_to_the_bit(probe, every):
    without = train(make())
    model = make()
    with Monitor(model, every=every, probe=probe, sinks=(), metrics=["mean_cosine", "effective_rank"]) as monitor:
        found = train(model, monitor)
    assert same(found, without)
    assert monitor.last.step == 6
    assert hooks(model) == 0
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize(
    ("name", "options"),
    [("sharpen", {}), ("sharpen", {"basis": "gram"}), ("sharpen", {"basis": "general"}), ("featscale", {})],
)
def test_remedies_are_left_as_they_are(name, options):
    without = train(unsmooth.apply(make(), name, **options))
    model = unsmooth.apply(make(), name, **options)
    with Monitor(model, every=1, sinks=()) as monitor:
        assert same(train(model, monitor), without)
    assert monitor.last is not None


def test_modes_generators_and_buffers_are_put_back():
    model = make()
    model.train()
    model.head.eval()
    model.encoder.register_buffer("rows", torch.zeros(()), persistent=False)
    model.encoder.register_forward_pre_hook(lambda module, args: print(module.rows.add_(1)))
    model.head.register_forward_hook(lambda *call: print(random.random(), np.random.rand(), torch.rand(1)))
    batch = torch.randn(4, TOKENS, DIM)
    before = random.getstate(), np.random.get_state()[1].copy(), torch.get_rng_state(), model.norm.running_mean.clone()
    with Monitor(model, probe=batch, sinks=()) as monitor:
        assert monitor.last.step == 0
    assert model.training
    assert not model.head.training
    assert float(model.encoder.rows) == 0
    assert random.getstate() == before[0]
    assert np.array_equal(np.random.get_state()[1], before[1])
    assert torch.equal(torch.get_rng_state(), before[2])
    assert torch.equal(model.norm.running_mean, before[3])


def test_a_pass_that_moves_weights_is_noticed_and_then_undone():
    model = make()
    model.head.register_forward_hook(lambda module, args, out: _grow(module))
    with Monitor(model, every=1, probe=torch.randn(4, TOKENS, DIM), sinks=()) as monitor:
        first = model.head.weight.detach().clone()  # moved by the first look, which could not know
        monitor.step()
        monitor.step()
    assert torch.equal(model.head.weight, first)


def _grow(module: nn.Module) -> None:
    if not module.training:
        with torch.no_grad():
            module.weight.mul_(1.5)


@pytest.mark.parametrize("probe", ["first", None], ids=["probe", "training passes"])
def test_an_evaluation_in_the_middle_changes_nothing_and_is_not_read(probe):
    loud = torch.ones(BATCH, TOKENS, DIM)

    def evaluate(model):
        def look(step):
            model.eval()
            with torch.no_grad():
                model(loud)
            model.train()

        return look

    plain, watched, alone = make(), make(), make()
    without = train(plain, between=evaluate(plain))
    with Monitor(watched, every=2, probe=probe, sinks=()) as monitor:
        assert same(train(watched, monitor, between=evaluate(watched)), without)
    with Monitor(alone, every=2, probe=probe, sinks=()) as other:
        train(alone, other)
    assert monitor.last.rows == other.last.rows


@pytest.mark.parametrize("probe", ["first", None], ids=["probe", "training passes"])
def test_no_hook_is_left_after_an_exception(probe, tmp_path):
    model = make()

    def fail(step):
        if step == 2:
            raise RuntimeError("the training's own")

    with pytest.raises(RuntimeError, match="own"), Monitor(model, every=1, probe=probe, out=tmp_path) as monitor:
        train(model, monitor, between=fail)
    assert hooks(model) == 0
    assert monitor.last.step == 3
    assert unsmooth.monitor.read_watched(tmp_path).state == "stopped"


def test_an_exception_inside_a_training_pass_that_is_read_takes_the_hooks_with_it():
    model = make()
    monitor = Monitor(model, every=1, probe=None, sinks=())
    monitor.begin()
    monitor.step()
    assert hooks(model) > 0
    with pytest.raises(RuntimeError):
        model(torch.randn(BATCH, TOKENS, DIM + 1))
    monitor.step()
    monitor.close()
    assert hooks(model) == 0


@pytest.mark.parametrize("probe", ["first", None], ids=["probe", "training passes"])
@pytest.mark.parametrize("reentrant", [False, True])
def test_gradient_checkpointing(bert_folder, probe, reentrant):
    from transformers import BertForSequenceClassification

    def run(monitored):
        torch.manual_seed(0)
        model = BertForSequenceClassification.from_pretrained(bert_folder).train()
        model.gradient_checkpointing_enable({"use_reentrant": reentrant})
        before = hooks(model)  # checkpointing has one of its own
        monitor = Monitor(model, every=1, probe=probe, sinks=()) if monitored else None
        optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
        if monitor:
            monitor.begin()
        for step in range(3):
            torch.manual_seed(step)
            ids = torch.randint(5, 20, (4, 7))
            model(input_ids=ids, attention_mask=torch.ones_like(ids), labels=ids[:, 0] % 2).loss.backward()
            optimiser.step()
            optimiser.zero_grad()
            if monitor:
                monitor.step()
        if monitor:
            monitor.close()
            assert monitor.last.step == 3
            assert [row.layer for row in monitor.last.curve("mean_cosine")] == [0, 1, 2, 3]
            assert hooks(model) == before
        return model.state_dict()

    assert same(run(True), run(False))
