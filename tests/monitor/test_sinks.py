"""Where readings go, and what happens where they cannot."""

from __future__ import annotations

import json
import logging
import os

import pytest
import torch

from tests.monitor.training import DIM, TOKENS, make, same, train
from unsmooth import Monitor
from unsmooth.monitor import SINKS, Sink, read_watched

BATCH = torch.randn(4, TOKENS, DIM)


def test_lines_hold_the_numbers_and_what_they_mean(tmp_path):
    rules = ["mean_cosine@last > -2"]
    with Monitor(make(), every=2, probe=BATCH, out=tmp_path, rules=rules, name="mine") as monitor:
        train(monitor.model, monitor)
    lines = [json.loads(line) for line in (tmp_path / "monitor.jsonl").read_text().splitlines()]
    assert [line["kind"] for line in lines] == ["start", "reading", "alarm", *["reading"] * 3, "end"]
    assert lines[0]["definitions"]["metrics"]["mean_cosine"]
    assert lines[0]["rules"] == rules
    assert lines[-1]["state"] == "finished"
    found = read_watched(tmp_path)
    assert (found.name, found.state) == ("mine", "finished")
    assert [one.step for one in found.readings] == [0, 2, 4, 6]
    told = [row.mean for row in found.readings[-1].curve("token_diversity")]
    assert told == pytest.approx([row.mean for row in monitor.last.curve("token_diversity")], rel=1e-6)


def test_a_run_that_is_taken_up_voids_what_came_after(tmp_path):
    for begin, count in ((0, 6), (3, 1)):
        monitor = Monitor(make(), every=1, probe=BATCH, out=tmp_path)
        monitor.begin(step=begin)
        for _ in range(count):
            monitor.step()
        monitor.close("stopped")
    assert [one.step for one in read_watched(tmp_path).readings] == [0, 1, 2, 3, 4]


def test_tensorboard(tmp_path):
    event_accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    with Monitor(make(), every=2, probe=BATCH, out=tmp_path, sinks=["tensorboard"]) as monitor:
        train(monitor.model, monitor)
    found = event_accumulator.EventAccumulator(str(tmp_path / "events")).Reload()
    events = found.Scalars("mean_cosine/residual/layer_03")
    assert [event.step for event in events] == [0, 2, 4, 6]
    assert events[-1].value == pytest.approx(monitor.last.curve("mean_cosine")[-1].mean, rel=1e-5)


def test_wandb_without_a_network_is_offline_and_says_so(tmp_path, monkeypatch, caplog):
    wandb = pytest.importorskip("wandb")
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("WANDB_SILENT", "true")
    without = train(make(), steps=2)
    model = make()
    monitor = Monitor(model, every=1, probe=BATCH, out=tmp_path, sinks=["wandb"], rules=["mean_cosine > -2"])
    with caplog.at_level(logging.WARNING), monitor:
        run = wandb.run
        assert same(train(model, monitor, steps=2), without)
        assert run.summary["unsmooth/step"] == 2
        assert run.summary["unsmooth/mean_cosine/residual/layer_03"] == monitor.last.curve("mean_cosine")[-1].mean
    assert wandb.run is None
    assert "offline" in caplog.text
    assert list(tmp_path.glob("wandb/offline-run-*/*.wandb"))


def test_a_run_of_somebody_else_is_joined_and_left_open(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")

    class Run:
        def __init__(self):
            self.lines, self.closed = [], False

        def define_metric(self, *names, **options):
            pass

        def log(self, line, commit):
            self.lines.append((line, commit))

        def finish(self, **options):
            self.closed = True

    run = Run()
    monkeypatch.setattr(wandb, "run", run)
    with Monitor(make(), probe=BATCH, out=tmp_path, sinks=["wandb"]):
        pass
    assert [(line["unsmooth/step"], commit) for line, commit in run.lines] == [(0, False)]
    assert not run.closed


class Full(Sink):
    """A disk that fills up after the first line."""

    def __init__(self):
        self.lines, self.tries = [], 0

    def open(self, card):
        return ""

    def write(self, reading):
        self.tries += 1
        if self.lines:
            raise OSError(28, os.strerror(28))
        self.lines.append(reading)


def test_a_full_disk_is_told_of_once_and_the_training_goes_on(tmp_path, caplog):
    without = train(make())
    model, full = make(), Full()
    with caplog.at_level(logging.WARNING), Monitor(model, every=1, sinks=[full, "jsonl"], out=tmp_path) as monitor:
        assert same(train(model, monitor), without)
    assert full.tries == 4  # once well, three times not, and then no more
    assert [record.message for record in caplog.records if "left out" not in record.message] == [
        "unsmooth: Full could not write, the training goes on. OSError: [Errno 28] No space left on device"
    ]
    assert len(caplog.records) == 2
    assert len(read_watched(tmp_path).readings) == 6


def test_a_folder_that_cannot_be_written_and_a_sink_that_is_not_there(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    with caplog.at_level(logging.WARNING):
        monitor = Monitor(make(), probe=BATCH, sinks=["jsonl", "jsonk"], out=tmp_path / "file" / "in")
        with monitor:
            assert monitor.last.step == 0
    assert "Did you mean 'jsonl'" in caplog.text
    assert "a writable folder" in caplog.text


def test_they_are_known_by_name():
    assert {"jsonl", "tensorboard", "wandb"} <= set(SINKS)
