"""Language modelling with memory: streams, what is remembered, what is forgotten, evaluation."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch.nn import functional as F  # noqa: N812 - as everywhere

from tests.training.tasks.building import built, here, language_config, loss_at, network_of
from unsmooth.errors import UnsmoothError
from unsmooth.training.place import Place
from unsmooth.training.tasks import language, windows
from unsmooth.training.tasks.language import LanguageTask
from unsmooth.training.tasks.windows import Streams

PLAIN = {"dropout": 0.0}


def test_segments_of_a_row_put_together_are_the_text() -> None:
    ids = numpy.arange(1000, 2000)
    streams = Streams(len(ids), streams=4, length=10, share=4, place=here())
    rows: list[list[int]] = [[] for _ in range(4)]
    for batch in range(streams.batches):
        for row, start in enumerate(streams.take(torch.tensor(batch)).tolist()):
            rows[row] += ids[start : start + 10].tolist()
    for row in range(4):
        assert rows[row] == ids[row * 249 : row * 249 + 240].tolist()


@pytest.mark.parametrize(("share", "ranks"), [(1, 4), (2, 2), (1, 2), (2, 1), (1, 1)])
def test_any_split_of_a_step_reads_the_same_segments(share: int, ranks: int) -> None:
    whole = Streams(1000, streams=4, length=10, share=4, place=here())
    parts = [Streams(1000, 4, 10, share, here(rank, ranks)) for rank in range(ranks)]
    groups = 4 // (share * ranks)
    assert parts[0].batches == whole.batches * groups
    for step in (0, 7, whole.batches):
        found = [part.take(torch.tensor(step * groups + group)) for part in parts for group in range(groups)]
        assert sorted(torch.cat(found).tolist()) == whole.take(torch.tensor(step)).tolist()
    assert sorted(torch.cat([part.own() for part in parts]).tolist()) == [0, 1, 2, 3]
    for part in parts:
        assert set(part.rows(torch.tensor(groups)).tolist()) <= set(part.own().tolist())


def windows_of(task: LanguageTask, batch: int) -> torch.Tensor:
    task.begin(batch)
    return task.windows.take(torch.tensor(batch))[1]


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_memory_equals_reading_both_segments_at_once(text: Path, norm: str) -> None:
    """Exact for one layer, whose memory are embeddings: later layers' memories have read less."""
    config = language_config(text, network={**PLAIN, "depth": 1, "norm": norm, "memory": 8})
    task = built(config)
    assert isinstance(task, LanguageTask)
    model = network_of(task)
    loss_at(task, model, 0)
    second = loss_at(task, model, 1)
    first_ids, second_ids = windows_of(task, 0), windows_of(task, 1)
    both = torch.cat([first_ids[:, :-1], second_ids[:, :-1]], dim=1)
    logits, _ = model(both)
    expected = F.cross_entropy(logits[:, 8:].flatten(0, 1), second_ids[:, 1:].flatten())
    assert abs(second - expected).item() < 1e-12
    alone, _ = model(second_ids[:, :-1])
    assert abs(second - F.cross_entropy(alone.flatten(0, 1), second_ids[:, 1:].flatten())).item() > 1e-6


def test_memory_is_empty_where_an_epoch_begins(text: Path) -> None:
    task = built(language_config(text, network=PLAIN))
    model = network_of(task)
    first = loss_at(task, model, 0)
    later = loss_at(task, model, 1)
    assert torch.equal(loss_at(task, model, task.batches), first)
    assert torch.equal(loss_at(task, model, task.batches + 1), later)


def test_no_gradient_into_memory_and_none_lost_by_writing_it(text: Path) -> None:
    task = built(language_config(text))
    assert isinstance(task, LanguageTask)
    assert task.memory is not None
    model = network_of(task)
    for batch in range(3):
        model.zero_grad()
        loss_at(task, model, batch).backward()  # would fail had the next memory been written over what it needs
        assert not task.memory.states.requires_grad
    assert all(one.grad is not None and one.grad.isfinite().all() for one in model.parameters())
    assert task.memory.filled.tolist() == [8] * 8


@pytest.mark.parametrize("share", [4, 2])
def test_two_processes_see_what_one_sees(text: Path, share: int) -> None:
    config = language_config(text)  # with dropout
    one = built(config)
    halves = [built(config, here(rank, 2), share) for rank in (0, 1)]
    model = network_of(one)
    passes = 4 // share
    for step in (0, 1, 2):
        whole = loss_at(one, model, step)
        parts = [loss_at(half, model, step * passes + part) for part in range(passes) for half in halves]
        assert abs(torch.stack(parts).mean() - whole).item() < 1e-12


def test_state_has_the_memory_of_all_processes(text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = language_config(text)
    one = built(config)
    halves: list[Any] = [built(config, here(rank, 2)) for rank in (0, 1)]
    model = network_of(one)
    for batch in range(2):
        for task in (one, *halves):
            loss_at(task, model, batch)
    # What the other process would add to a sum.
    other = {"states": halves[1].memory.states.clone(), "filled": halves[1].memory.filled.clone()}

    def summed(own: torch.Tensor, place: Place) -> torch.Tensor:
        return own.add_(other["states"] if own.ndim == 4 else other["filled"])

    monkeypatch.setattr(language, "summed_over_processes", summed)
    whole, found = one.state(), halves[0].state()
    for name in ("memory", "filled"):
        torch.testing.assert_close(found[name], whole[name], rtol=0, atol=1e-12)


def test_a_run_taken_up_goes_on_as_if_it_had_not_stopped(text: Path) -> None:
    config = language_config(text)
    task, other = built(config), built(config)
    model = network_of(task)
    for batch in range(3):
        loss_at(task, model, batch)
    kept = {name: value.clone() for name, value in task.state().items()}
    expected = loss_at(task, model, 3)
    other.begin(0)
    for name, value in other.state().items():
        value.copy_(kept[name])
    assert torch.equal(loss_at(other, model, 3), expected)


def test_streaming_gives_the_same_losses(text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = language_config(text)
    resident = built(config)
    monkeypatch.setattr(windows, "RESIDENT", 0)
    streamed = built(config)
    model = network_of(resident)
    for batch in range(4):
        assert torch.equal(loss_at(resident, model, batch), loss_at(streamed, model, batch))


def test_evaluation_of_a_model_that_knows_nothing(text: Path) -> None:
    task = built(language_config(text))
    model = network_of(task).eval()
    torch.nn.init.zeros_(model.tokens.weight)
    found = task.evaluate(model)
    assert found["loss"] == pytest.approx(math.log(256), abs=1e-12)
    assert found["bits_per_character"] == pytest.approx(8, abs=1e-12)
    assert found["perplexity"] == pytest.approx(256, abs=1e-9)
    assert math.log(2) * found["unigram_bits_per_character"] == pytest.approx(found["unigram_loss"], abs=1e-12)


def test_evaluation_reads_with_memory_from_start_to_end(text: Path) -> None:
    """One stream and one layer: the same as the whole text at once, with every token seeing 8 to 16 tokens back."""
    config = language_config(text, network={**PLAIN, "depth": 1})
    task = built(dataclasses.replace(config, data=dataclasses.replace(config.data, test_limit=3)))
    assert isinstance(task, LanguageTask)
    model = network_of(task).eval()
    ids = task.text.valid[slice(0, 25)][None]
    nats = []
    for start in (0, 8, 16):
        logits, _ = model(ids[:, max(0, start - 8) : start + 8])
        nats.append(F.cross_entropy(logits[0, -8:], ids[0, start + 1 : start + 9], reduction="sum"))
    assert task.evaluate(model)["loss"] == pytest.approx(torch.stack(nats).sum().item() / 24, abs=1e-12)


def test_evaluation_is_the_same_for_any_number_of_processes(text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = language_config(text)
    one = built(config)
    model = network_of(one).eval()
    sums: list[torch.Tensor] = []

    def summed(own: torch.Tensor, place: Place) -> torch.Tensor:
        sums.append(own)
        return torch.stack(sums).sum(0)

    whole = one.evaluate(model)
    monkeypatch.setattr(language, "summed_over_processes", summed)
    for rank in range(3):
        last = built(dataclasses.replace(config, batch=9), here(rank, 3)).evaluate(model)
    assert last == pytest.approx(whole, abs=1e-12)


def test_bad_settings_are_one_line(text: Path) -> None:
    with pytest.raises(UnsmoothError, match=r"ramp=0: each row of the batch is a stream but got 0.5"):
        built(language_config(text, ramp=0.5))
    with pytest.raises(UnsmoothError, match=r"for 1000 streams of one segment but got 3600. Try a smaller batch"):
        built(language_config(text, batch=1000))
