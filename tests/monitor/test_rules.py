"""When a rule holds, and what is done then."""

from __future__ import annotations

import logging
import math

import pytest
import torch

from tests.monitor.training import DIM, TOKENS, make, train
from unsmooth import Monitor, UnsmoothError
from unsmooth.monitor import Reading, Rule
from unsmooth.scanning.result import Row


def reading(step, *means):
    return Reading(step, tuple(Row(n, "residual", "mean_cosine", mean, 0, 0, 0, 4, 8) for n, mean in enumerate(means)))


def steps_told(rule, values, every=50):
    return [number * every for number, value in enumerate(values, 1) if rule.check(reading(number * every, 0.0, value))]


@pytest.mark.parametrize(
    ("text", "values", "told"),
    [
        ("mean_cosine@last > 0.9", [0.8, 0.95, 0.96, 0.8, 0.95], [100, 250]),
        ("mean_cosine@last > 0.9 for 100 steps", [0.95, 0.95, 0.95, 0.95], [150]),
        ("mean_cosine@last > 0.9 for 100 steps", [0.95, 0.95, 0.8, 0.95, 0.95, 0.95], [300]),
        ("mean_cosine@last > 0.9 for 1 step", [0.95, 0.95], [100]),
        ("mean_cosine@first >= 0.0 for 0 steps", [0.1], [50]),
        ("mean_cosine@1<0.5", [0.6, 0.4], [100]),
        ("mean_cosine@any > 0.9", [0.95], [50]),
        ("mean_cosine@last > 0.9", [math.nan, math.nan], []),
        ("mean_cosine@last > 0.9 for 100 steps", [0.95, math.nan, 0.95, 0.95], []),
    ],
)
def test_when_it_is_told(text, values, told):
    assert steps_told(Rule(text), values) == told


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("loss@last > 1", "a known metric"),
        ("mean_cosine@last > 0.9 for 10 epochs", "a condition METRIC@LAYER>NUMBER"),
        ("mean_cosine", "a condition"),
        (("mean_cosine > 0.5", "explode"), '"warn", "stop" or a function'),
        (3, "a rule as text"),
    ],
)
def test_a_rule_that_is_none_is_told_of_and_left_out(given, message, caplog):
    with pytest.raises(UnsmoothError, match=message):
        Rule.of(given)
    with pytest.raises(UnsmoothError, match=message):
        Monitor(make(), rules=[given], strict=True)
    with (
        caplog.at_level(logging.WARNING),
        Monitor(make(), rules=[given, "mean_cosine > -2"], sinks=(), probe=torch.randn(2, TOKENS, DIM)) as monitor,
    ):
        assert len(monitor.alarms) == 1
    assert len([one for one in caplog.records if "does without the rule" in one.message]) == 1
    assert all("\n" not in one.message for one in caplog.records)


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("mean_cosine@last:mpl > 0.9", "Did you mean 'mlp'?"),
        ("mean_cosine@last:cross > 0.9", "a site that torch_encoder blocks have"),
        ("mean_cosine@last:all > 0.9", "a known site"),
        ("mean_cosin@last > 0.9", "Did you mean 'mean_cosine'? Known: attention_entropy,"),
        ("attention_entropy@last > 0.9", "which reads attention maps"),
    ],
)
@pytest.mark.parametrize("probe", ["first", None], ids=["probe", "training passes"])
def test_one_rule_that_cannot_be_takes_no_other_along(rule, message, probe, caplog):
    model = make()
    rules = ["mean_cosine@last > -2", (rule, "stop")]
    with caplog.at_level(logging.WARNING), Monitor(model, every=1, rules=rules, sinks=(), probe=probe) as monitor:
        train(model, monitor, steps=2)
    assert [alarm.rule for alarm in monitor.alarms] == ["mean_cosine@last > -2"]
    assert monitor.last.sites == ("residual",)
    [line] = [one.message for one in caplog.records if "does without" in one.message]
    assert line.startswith(f"unsmooth: The monitor does without the rule {rule!r}. Expected ")
    assert message in line
    assert "…" not in line
    with pytest.raises(UnsmoothError), Monitor(make(), rules=rules, strict=True, sinks=()):
        pass


def test_a_scan_has_no_steps():
    from unsmooth.scanning.condition import Condition

    with pytest.raises(UnsmoothError, match="which has no steps"):
        Condition.parse("mean_cosine@last > 0.9 for 10 steps")


def test_warn_stop_and_call(caplog):
    called = []
    rules = [
        "mean_cosine@last > -2",
        ("mean_cosine@last > -3 for 2 steps", "stop"),
        ("mean_cosine@last > -4", called.append),
        ("mean_cosine@last > -5", lambda alarm: 1 / 0),
        "mean_cosine@17 > 0",
        ("effective_rank@first:attention > 0", called.append),
    ]
    monitor = Monitor(make(), every=1, rules=rules, sinks=(), probe=torch.randn(2, TOKENS, DIM))
    with caplog.at_level(logging.WARNING), monitor:
        assert [alarm.step for alarm in called] == [0, 0]
        assert not monitor.should_stop
        monitor.step()
        assert not monitor.should_stop
        monitor.step()
        assert monitor.should_stop
        monitor.step()
    assert len(called) == 2
    assert called[1].rule.startswith("effective_rank")
    assert "division by zero" in caplog.text
    assert "a layer from 0 to 3" in caplog.text
    assert len(caplog.records) == 7  # six rules once each, and the function that failed
