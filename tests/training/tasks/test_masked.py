"""Masked language modelling: batches, processes, evaluation."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import numpy
import pytest
import torch

from tests.training.tasks.building import built, here, language_config, loss_at, masked_config, network_of
from unsmooth.errors import UnsmoothError
from unsmooth.training.tasks import windows
from unsmooth.training.tasks.masked import MaskedTask


def test_two_processes_see_what_one_sees(text: Path) -> None:
    config = masked_config(text)
    one = built(config)
    halves = [built(config, here(rank, 2)) for rank in (0, 1)]
    model = network_of(one)  # with dropout and stochastic depth, which belong to the sample
    for batch in (0, one.batches - 1, one.batches):
        whole = loss_at(one, model, batch)
        parts = [loss_at(half, model, batch) for half in halves]
        assert abs((parts[0] + parts[1]) / 2 - whole).item() < 1e-12
        assert abs(parts[0] - parts[1]).item() > 1e-6


def test_streaming_gives_the_same_losses(text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = masked_config(text)
    resident = built(config)
    monkeypatch.setattr(windows, "RESIDENT", 0)
    streamed = built(config)
    model = network_of(resident)
    for batch in (0, 1, 2, 30):
        assert torch.equal(loss_at(resident, model, batch), loss_at(streamed, model, batch))


def test_loss_is_the_cross_entropy_of_hidden_tokens(text: Path) -> None:
    task = built(masked_config(text))
    assert isinstance(task, MaskedTask)
    calls = []

    class Spy(torch.nn.Module):
        def forward(self, ids: torch.Tensor, *, at: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
            calls.append((ids, at))
            return torch.sin(torch.arange(261.0, dtype=torch.float64) + at[..., None])

    loss = loss_at(task, Spy(), 0).item()
    (ids, at), original = calls[0], task.windows.take(torch.tensor(0))[1]
    nats = []
    for row in range(8):
        for place in at[row].tolist():
            logits = numpy.sin(numpy.arange(261.0) + place)
            nats.append(numpy.log(numpy.exp(logits).sum()) - logits[original[row, place]])
    assert loss == pytest.approx(numpy.mean(nats), abs=1e-12)
    assert at.shape == (8, 4)
    # Three of four are gone; the model cannot read them off.
    assert (ids.gather(1, at) == original.gather(1, at)).sum(1).max() <= 2


def test_evaluation_of_a_model_that_knows_nothing(text: Path) -> None:
    task = built(masked_config(text))
    model = network_of(task).eval()
    torch.nn.init.zeros_(model.tokens.weight)
    found = task.evaluate(model)
    assert found["loss"] == pytest.approx(math.log(261), abs=1e-12)
    # Token counts, by hand.
    assert isinstance(task, MaskedTask)
    train = task.text.train.whole().numpy()
    counts = numpy.bincount(train, minlength=261) + 1.0
    targets = task.asked(torch.arange(len(task.text.valid) // 16)).targets.numpy().flatten()
    assert found["unigram_loss"] == pytest.approx(-numpy.log(counts / counts.sum())[targets].mean(), abs=1e-12)
    assert task.evaluate(model) == found


def test_bad_settings_are_one_line(text: Path) -> None:
    config = masked_config(text)
    small = dataclasses.replace(config, network=dataclasses.replace(config.network, vocabulary=256))
    with pytest.raises(UnsmoothError, match=r"at least the tokenizer's 261 tokens but got 256. Try --set network.voc"):
        built(small)
    long = dataclasses.replace(config, network=dataclasses.replace(config.network, length=4000))
    with pytest.raises(UnsmoothError, match="at least 4001 tokens"):
        built(long)
    with pytest.raises(UnsmoothError, match="EncoderConfig for the task 'masked'"):
        built(dataclasses.replace(language_config(text), task="masked"))
