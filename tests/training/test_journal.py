"""The written side of a run: numbers once, in order, also where it was taken up again."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from tests.training.tiny_runs import tiny
from unsmooth.training import Progress, RunFolder
from unsmooth.training.journal import Journal
from unsmooth.training.place import Place
from unsmooth.training.timing import Timetable

TABLE = Timetable(10, 5, 1, 0, frozenset({10}), frozenset({0, 10}), frozenset({10}), 0)


def _journal(path: Path, heard: list[Progress] | None = None, rank: int = 0) -> Journal:
    place = Place(torch.device("cpu"), rank, rank + 1)
    return Journal(RunFolder(path, "mine"), TABLE, place, (heard if heard is not None else []).append)


def _lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in (path / "log.jsonl").read_text().splitlines()]


def test_a_note_is_a_line_and_is_shown(tmp_path: Path) -> None:
    heard: list[Progress] = []
    journal = _journal(tmp_path, heard)
    journal.open(None)
    journal.note("train", 5, {"loss": 2.0, "scan": "words"})
    assert _lines(tmp_path) == [{"kind": "train", "step": 5, "epoch": 1.0, "loss": 2.0, "scan": "words"}]
    assert (heard[-1].name, heard[-1].step, heard[-1].steps, heard[-1].said) == ("mine", 5, 10, {"train/loss": 2.0})


def test_taken_up_it_forgets_what_came_after_the_checkpoint(tmp_path: Path) -> None:
    first = _journal(tmp_path)
    first.open(None)
    for step in (1, 2, 3):
        first.note("train", step, {"loss": float(step)})
        first.note_spectra(step, [])
    first.close()
    again = _journal(tmp_path)
    again.open(2, seconds=7.0, said={"train/loss": 2.0})
    again.note("train", 3, {"loss": 30.0})
    assert [(line["step"], line["loss"]) for line in _lines(tmp_path)] == [(1, 1.0), (2, 2.0), (3, 30.0)]
    assert [line["step"] for line in again.spectra.read()] == [1, 2]
    assert again.watch.seconds >= 7.0


def test_other_processes_write_nothing(tmp_path: Path) -> None:
    heard: list[Progress] = []
    journal = _journal(tmp_path, heard, rank=1)
    journal.open(None)
    journal.note("train", 1, {"loss": 1.0})
    journal.note_spectra(1, [])
    journal.write_manifest("running", 1, tiny())
    journal.close()
    assert not list(tmp_path.iterdir())
    assert len(heard) == 1


def test_the_manifest_says_how_far_the_run_came(tmp_path: Path) -> None:
    journal = _journal(tmp_path)
    journal.open(None)
    journal.note("evaluation", 4, {"accuracy": 0.5})
    journal.write_manifest("stopped", 4, tiny(seed=3), reason="somebody fell over the cable")
    found = RunFolder(tmp_path).manifest()
    assert (found["state"], found["done"], found["steps"], found["seed"]) == ("stopped", 4, 10, 3)
    assert found["last"] == {"evaluation/accuracy": 0.5}
    assert found["reason"] == "somebody fell over the cable"
    assert {"python", "torch"} <= set(found["versions"])
