"""Whatever goes wrong in the monitor is told in one line, and the training goes on."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import nn

from tests.monitor.training import BATCH, DIM, TOKENS, hooks, make, same, train
from unsmooth import Monitor, UnsmoothError


@pytest.fixture
def lines(caplog):
    caplog.set_level(logging.WARNING)
    yield lambda: [record.message for record in caplog.records]
    assert all("\n" not in record.message for record in caplog.records)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"metrics": ["mean_cosin"]}, "Did you mean 'mean_cosine'"),
        ({"metrics": ["attention_entropy"]}, "which reads attention"),
        ({"sites": ["nowhere"]}, "a known site"),
        ({"probe": "last"}, 'a batch, "first" or None as probe'),
        ({"blocks": "nothing.*"}, "modules that match"),
    ],
)
def test_settings_that_do_not_fit(options, message, lines):
    without = train(make())
    model = make()
    with Monitor(model, every=1, sinks=(), **options) as monitor:
        assert same(train(model, monitor), without)
    assert any(message in line for line in lines())
    with pytest.raises(UnsmoothError, match=message), Monitor(make(), sinks=(), strict=True, **options):
        pass


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"rules": 3}, "the rules 3. Expected rules in a list but got 3."),
        ({"metrics": 3}, "the metrics 3. Expected metrics in a list but got 3."),
        ({"metrics": [3]}, "the metric 3. Expected metrics by name but got [3]."),
        ({"sites": 3}, "the sites 3. Expected sites by name but got 3."),
        ({"sites": ("mlp", 3)}, "the sites ('mlp', 3). Expected sites by name but got ('mlp', 3)."),
        ({"sites": [3]}, "the sites [3]. Expected sites by name but got [3]."),
        ({"sites": ()}, "the sites (). Expected at least one site but got none."),
        ({"sinks": 3}, "the sinks 3. Expected sinks in a list but got 3."),
        ({"sinks": [3]}, "the sink 3. Expected a sink, or the name of one but got 3."),
    ],
)
def test_settings_of_other_kinds(options, line, lines):
    with Monitor(make(), **{"sinks": (), **options}, probe=torch.randn(2, TOKENS, DIM)) as monitor:
        assert monitor.last.sites == ("residual",)
    assert [said.partition(" Try ")[0] for said in lines()] == [f"unsmooth: The monitor does without {line}"]
    with pytest.raises(UnsmoothError):
        Monitor(make(), **{"sinks": (), **options}, strict=True)


def test_one_name_or_a_generator_will_do(lines):
    rules = (f"mean_cosine@{layer} > -2" for layer in range(2))
    with Monitor(make(), metrics="token_diversity", rules=rules, sinks=(), probe=torch.randn(2, TOKENS, DIM)) as found:
        assert {row.metric for row in found.last.rows} == {"token_diversity", "mean_cosine"}
        assert len(found.alarms) == 2


@pytest.mark.parametrize("name", ["on_init_end", "setup"])
def test_a_monitor_is_no_callback(name):
    with pytest.raises(AttributeError, match=r"a Monitor, which has no .* Try callbacks=\[monitor.for_trainer\(\)\]"):
        getattr(Monitor(make(), sinks=()), name)
    assert not hasattr(Monitor(make(), sinks=()), "nothing")


def test_a_site_that_is_none_takes_no_other_along(lines):
    with Monitor(make(), sites=["mpl", "mlp"], sinks=(), probe=torch.randn(2, TOKENS, DIM)) as monitor:
        assert monitor.last.sites == ("mlp",)
    assert [line.partition(". ")[0] for line in lines()] == ["unsmooth: The monitor does without the site 'mpl'"]


def test_a_model_without_blocks(lines):
    model = nn.Sequential(nn.Linear(DIM, DIM), nn.ReLU())
    with Monitor(model, sinks=()) as monitor:
        assert train(model, monitor)
    assert "Transformer blocks" in lines()[0]
    assert monitor.last is None


@pytest.mark.parametrize("every", [1, 2])
def test_steps_without_a_beginning(every, lines):
    """The first step begins the watching, after the model was called; the next call is the batch."""
    model = make()
    monitor = Monitor(model, every=every, sinks=())
    train(model, monitor)
    monitor.close()
    assert monitor.last is not None
    assert monitor.last.step == 6
    assert not lines()
    assert not hooks(model)


@pytest.mark.parametrize("sequences", [0, -1, 1.5, "many", True])
def test_sequences_that_are_none(sequences):
    with pytest.raises(UnsmoothError, match="sequences as a number from 1 on"):
        Monitor(make(), sequences=sequences)


@pytest.mark.parametrize("every", [0, -1, 1.5, True])
def test_every_is_a_number_of_steps(every):
    with pytest.raises(UnsmoothError, match="every as a number of steps"):
        Monitor(make(), every=every)


def test_a_batch_that_the_model_cannot_read(lines):
    without = train(make())
    model = make()
    with Monitor(model, every=1, probe=torch.randn(2, TOKENS, DIM + 1), sinks=()) as monitor:
        assert same(train(model, monitor), without)
    assert monitor.last is None
    assert len(lines()) == 2  # what is wrong, and that there will be no more looks
    assert hooks(model) == 0


@pytest.mark.parametrize("probe", ["first", None], ids=["probe", "training passes"])
def test_nan_activations(probe, lines, tmp_path):
    model = make()

    def break_it(step):
        if step == 2:
            with torch.no_grad():
                model.encoder.layers[1].linear1.weight.fill_(torch.nan)

    with Monitor(model, every=1, probe=probe, out=tmp_path, rules=[("mean_cosine@last > 2", "stop")]) as monitor:
        train(model, monitor, between=break_it)
    told = [line for line in lines() if "NaN" in line]
    assert told == ["unsmooth: Activations are NaN or Inf from step 4 on."]
    assert not monitor.last.healthy
    assert monitor.last.curve("mean_cosine")[-1].mean != monitor.last.curve("mean_cosine")[-1].mean
    assert not monitor.should_stop


def test_an_error_in_a_training_pass_that_is_read_is_not_the_trainings(lines, monkeypatch):
    from unsmooth.scanning.collect import Collector

    def fail(self, *arguments):
        raise MemoryError("no room")

    monkeypatch.setattr(Collector, "__call__", fail)
    without = train(make())
    model = make()
    with Monitor(model, every=1, probe=None, sinks=()) as monitor:
        assert same(train(model, monitor), without)
    assert "no room" in lines()[0]
    assert hooks(model) == 0


def test_a_model_whose_inputs_have_no_names(lines):
    class Starred(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = make()

        def forward(self, *inputs):
            return self.inner(inputs[0]) + inputs[1].mean()

    model = Starred()
    with Monitor(model, every=1, sinks=()) as monitor:
        model(torch.randn(BATCH, TOKENS, DIM), torch.zeros(1))
        monitor.step()
    assert "inputs have names" in lines()[0]
