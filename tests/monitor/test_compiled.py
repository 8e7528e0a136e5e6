"""Models that are compiled, before or after the monitor, wrapped or in place."""

from __future__ import annotations

import logging

import pytest
import torch
from torch._dynamo.utils import counters

from tests.monitor.training import BATCH, DIM, TOKENS, hooks, make, same, train
from unsmooth import Monitor

# Traced as by default, without the minute that making code takes.
OPTIONS = {"backend": "aot_eager", "fullgraph": True}


def compiled(model, how):
    if how == "in place":
        model.compile(**OPTIONS)
        return model
    return torch.compile(model, **OPTIONS)


@pytest.fixture(autouse=True)
def forgotten():
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize(
    ("how", "watched", "probe"),
    [
        ("before", "compiled", "first"),
        ("before", "plain", "given"),
        ("after", "plain", "given"),
        ("in place", "plain", "given"),
        ("in place", "plain", "first"),
        ("before", "compiled", None),
    ],
)
def test_the_same_bits_and_no_more_graphs(how, watched, probe):
    plain = make(depth=1)
    called = compiled(plain, how)
    without = train(plain, called=called)
    graphs = counters["stats"]["unique_graphs"]
    torch._dynamo.reset()
    counters.clear()

    model = make(depth=1)
    batch = torch.ones(3, TOKENS, DIM) if probe == "given" else probe
    if how == "after":
        monitor = Monitor(model, every=2, probe=batch, sinks=())
        monitor.begin()
        called = compiled(model, how)
    else:
        called = compiled(model, how)
        monitor = Monitor(called if watched == "compiled" else model, every=2, probe=batch, sinks=())
        monitor.begin()
    found = train(model, monitor, called=called)
    monitor.close()
    assert same(found, without)
    assert monitor.last.step == 6
    assert counters["stats"]["unique_graphs"] == graphs
    assert hooks(model) == 0


def test_a_model_that_has_run_compiled_in_place_is_seen_and_left_as_it_was():
    model = make(depth=1)
    compiled(model, "in place")
    call = model._compiled_call_impl
    model(torch.randn(BATCH, TOKENS, DIM))
    with Monitor(model, every=2, sinks=()) as monitor:
        assert model._compiled_call_impl is not call
        train(model, monitor)
    assert monitor.last.step == 6
    assert model._compiled_call_impl is call
    with Monitor(model, every=2, sinks=()):
        pass
    assert model._compiled_call_impl is call


def test_a_model_compiled_in_place_while_it_is_watched_is_seen_from_the_next_step_on():
    model = make(depth=1)
    with Monitor(model, every=2, sinks=()) as monitor:
        compiled(model, "in place")
        train(model, monitor)
        assert monitor.last.step == 6
    assert hooks(model) == 0


def test_calls_that_are_not_seen_are_told_of_and_a_batch_may_be_offered(caplog):
    for offered in (False, True):
        model = make(depth=1)
        called = compiled(model, "after")
        with Monitor(model, every=2, sinks=()) as monitor:
            if offered:
                monitor.offer((torch.randn(BATCH, TOKENS, DIM), torch.zeros(BATCH)))
            with caplog.at_level(logging.WARNING):
                train(model, monitor, called=called)
        assert (monitor.last is not None) == offered
        assert ("probe=batch" in caplog.text) != offered
        caplog.clear()
