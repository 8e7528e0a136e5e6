"""A site or a metric that cannot be had is left out in one line, and the others are measured."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor, nn

import unsmooth
from tests.monitor.training import hooks, make, same, train
from tests.two_processes import in_two_processes
from unsmooth import Monitor, UnsmoothError
from unsmooth.functional import METRICS
from unsmooth.models import Tap

transformers = pytest.importorskip("transformers")
SIZES = {"vocab_size": 40, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
IDS = torch.randint(5, 40, (8, 7), generator=torch.Generator().manual_seed(0))
both_looks = pytest.mark.parametrize("probe", ["first", None], ids=["probe", "training passes"])


@pytest.fixture
def lines(caplog):
    caplog.set_level(logging.WARNING)
    return lambda: [record.message.removeprefix("unsmooth: ") for record in caplog.records]


@pytest.fixture
def known_before(monkeypatch):
    """Taps found in a pass in which attention still returned something."""
    taps = {
        "normed": Tap("input_layernorm", "output"),
        "attention": Tap("self_attn", "output"),
        "mid": Tap("post_attention_layernorm", "input"),
        "mlp": Tap("mlp", "output"),
    }
    monkeypatch.setattr("unsmooth.models.wire.found_taps", lambda block: taps)


def aside() -> nn.Module:
    """A Llama whose attention returns nothing: its blocks find what it made elsewhere."""
    torch.manual_seed(0)
    model = transformers.LlamaModel(transformers.LlamaConfig(**SIZES, num_key_value_heads=2))
    for layer in model.layers:
        layer.self_attn.forward = partial(_attend, layer.self_attn, layer.self_attn.forward)
        layer.forward = partial(_block, layer)
    return model


def _attend(attention, forward, **inputs) -> None:
    attention.made = forward(**inputs)[0]


def _block(layer, hidden_states: Tensor, **inputs) -> Tensor:
    layer.self_attn(hidden_states=layer.input_layernorm(hidden_states), **inputs)
    mid = hidden_states + layer.self_attn.made
    return mid + layer.mlp(layer.post_attention_layernorm(mid))


def bert() -> nn.Module:
    torch.manual_seed(0)
    return transformers.BertModel(transformers.BertConfig(**SIZES))


def looked_at(model: nn.Module, steps: int = 4, **options) -> Monitor:
    with Monitor(model, every=1, sinks=(), **options) as monitor:
        for _ in range(steps):
            model.train()(input_ids=IDS).last_hidden_state.sum().backward()
            monitor.step()
    assert hooks(model) == 0
    return monitor


@both_looks
@pytest.mark.parametrize(
    ("sites", "left"),
    [
        ("all", ("residual", "normed", "mid", "mlp")),
        (["attention", "residual"], ("residual",)),
        (["attention"], ("residual",)),
    ],
)
@pytest.mark.usefixtures("known_before")
def test_a_site_where_nothing_is_returned(sites, left, probe, lines):
    monitor = looked_at(aside(), sites=sites, probe=probe)
    assert (monitor.last.step, monitor.last.sites) == (4, left)
    assert lines() == [
        "The monitor does without the site 'attention'. Expected a tensor at the site 'attention', which is "
        f"'layers.0.self_attn', but got NoneType. Try sites={list(left)}."
    ]


@pytest.mark.usefixtures("known_before")
def test_the_rules_about_it_go_with_it(lines):
    rules = ["mean_cosine@last:attention > -2", "mean_cosine > -2"]
    monitor = looked_at(aside(), rules=rules)
    assert [alarm.rule for alarm in monitor.alarms] == rules[1:]
    assert len(lines()) == 2
    assert f"does without the site 'attention' and the rule {rules[0]!r}. Expected" in lines()[0]


@pytest.mark.usefixtures("known_before")
def test_a_scan_names_the_module_and_the_sites_beside_it():
    with pytest.raises(UnsmoothError, match=r"which is 'layers\.0\.self_attn', but got NoneType\. Try sites=\['resid"):
        unsmooth.scan(aside(), IDS, sites="all", progress=False)


@both_looks
@pytest.mark.parametrize("name", ["relative_log_amplitude", "relative_log_amplitude(grid=(4, 4))"])
def test_a_metric_that_does_not_fit_the_data(name, probe, lines):
    monitor = looked_at(bert(), metrics=[name, "token_diversity"], probe=probe)
    assert {row.metric for row in monitor.last.rows} == {"token_diversity"}
    assert monitor.last.step == 4
    [line] = lines()
    assert line.startswith(f"The monitor does without the metric {name!r}. Expected ")


def test_where_no_other_was_asked_for_the_usual_is_measured(lines):
    monitor = looked_at(bert(), metrics=["relative_log_amplitude"], rules=["relative_log_amplitude > 0"])
    assert {row.metric for row in monitor.last.rows} == {"mean_cosine"}
    assert len(lines()) == 1


@both_looks
@pytest.mark.parametrize("always", [True, False])
def test_a_metric_that_fails_by_itself_is_left_out_after_three_looks(always, probe, lines, monkeypatch):
    calls = []

    def stumbles(x, mask=None):
        calls.append(x)
        if always or 1 < len(calls) < 5:
            raise RuntimeError("no such\nshape")
        return torch.zeros(x.input_BND.shape[0])

    declared = replace(METRICS["mean_cosine"], name="stumbles", function=stumbles)
    monkeypatch.setitem(METRICS._items, "stumbles", declared)
    without = train(make())
    model = make()
    with Monitor(model, every=1, metrics=["stumbles", "token_diversity"], probe=probe, sinks=()) as monitor:
        assert same(train(model, monitor), without)
    assert hooks(model) == 0
    assert monitor.last.step == 6
    left_out = [line for line in lines() if line.startswith("The monitor does without the metric 'stumbles'. ")]
    assert len(left_out) == (1 if always else 0)
    assert {row.metric for row in monitor.last.rows} == {"token_diversity"} | (set() if always else {"stumbles"})
    assert all("\n" not in line for line in lines())
    assert any("RuntimeError: no such shape" in line for line in lines())


TWO = """
import json, torch, torch.distributed as dist
import unsmooth
from tests.monitor.training import DIM, TOKENS, make

torch.set_num_threads(1)
dist.init_process_group("gloo")
batch = torch.randn(2, TOKENS - dist.get_rank(), DIM)  # too few tokens for the grid in the second
metrics = [f"relative_log_amplitude(grid=(1, {TOKENS}))", "mean_cosine"]
with unsmooth.Monitor(make(), every=1, metrics=metrics, probe=batch, sinks=()) as monitor:
    monitor.step()
found = sorted({row.metric for row in monitor.last.rows}), monitor.last.step, monitor.last.rows[0].sequences
with open(f"{dist.get_rank()}.json", "w") as file:
    json.dump(found, file)
"""


def test_processes_leave_out_the_same(tmp_path):
    in_two_processes(TWO, tmp_path)
    for rank in range(2):
        assert json.loads((tmp_path / f"{rank}.json").read_text()) == [["mean_cosine"], 1, 4]
