"""A model of several stacks: each has its curves, and a rule may name one."""

from __future__ import annotations

import pytest
import torch

from tests.monitor.training import hooks, same
from unsmooth import Monitor
from unsmooth.monitor import read_watched

transformers = pytest.importorskip("transformers")


def run(monitor_of=None):
    torch.manual_seed(0)
    config = transformers.T5Config(
        vocab_size=30, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_decoder_layers=3, num_heads=2,
        decoder_start_token_id=0,
    )  # fmt: skip
    model = transformers.T5ForConditionalGeneration(config).train()
    monitor = monitor_of(model) if monitor_of else None
    if monitor:
        monitor.begin()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(2):
        torch.manual_seed(step)
        model(input_ids=torch.randint(5, 30, (8, 7)), labels=torch.randint(5, 30, (8, 6))).loss.backward()
        optimiser.step()
        optimiser.zero_grad()
        if monitor:
            monitor.step()
    if monitor:
        monitor.close()
        assert hooks(model) == 0
    return model.state_dict(), monitor


@pytest.mark.parametrize("probe", ["first", None], ids=["probe", "training passes"])
def test_encoder_and_decoder(probe, tmp_path):
    rules = ["mean_cosine@decoder:last > -2", "mean_cosine@elsewhere:last > -2"]
    found, monitor = run(lambda model: Monitor(model, every=1, probe=probe, out=tmp_path, rules=rules))
    assert same(found, run()[0])
    assert [alarm.layer for alarm in monitor.alarms] == [3]
    (encoder, decoder) = monitor.last.parts
    assert (encoder.stack, decoder.stack) == ("encoder", "decoder")
    assert [row.layer for row in decoder.curve("mean_cosine")] == [0, 1, 2, 3]
    told = read_watched(tmp_path)
    assert ("mean_cosine", "residual", "decoder") in told.curves
    assert [row.mean for row in told.readings[-1].parts[1].curve("mean_cosine")] == pytest.approx(
        [row.mean for row in decoder.curve("mean_cosine")], rel=1e-6
    )
    assert any("left out" in text and "elsewhere" in text for _, _, text in told.events)
