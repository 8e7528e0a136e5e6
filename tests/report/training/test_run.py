"""Reading run folders, whole and broken."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.report.training.fake_runs import LAYERS, loss_at
from unsmooth.errors import UnsmoothError
from unsmooth.training import find_runs, read_run


@pytest.fixture
def folder(run_folders: dict[str, Path], tmp_path: Path) -> Path:
    """A run that a test may break."""
    return Path(shutil.copytree(run_folders["one"], tmp_path / "run"))


def test_whole_run_is_read(folder):
    run = read_run(folder)
    assert run.notes == ()
    assert [line["step"] for line in run.training] == list(range(10, 401, 10))
    assert run.training[3]["loss"] == loss_at(40)
    assert [line["epoch"] for line in run.evaluations] == [1, 2, 3, 4]
    assert [(one.step, one.epoch) for one in run.measurements] == [(0, 0), (200, 2), (400, 4)]
    assert run.measurements[0].scan.layers == tuple(range(LAYERS + 1))
    assert [len(line["layers"]) for line in run.spectra] == [LAYERS] * 3
    assert run.metrics == ("accuracy", "top5_accuracy")
    assert (run.seed, run.state, run.remedies, run.data["name"]) == (0, "finished", (), "cifar100")


def test_cut_off_last_line_is_left_out_and_told(folder):
    log = folder / "log.jsonl"
    log.write_text(log.read_text()[:-25])
    run = read_run(folder)
    assert run.notes == ("The last line of log.jsonl is cut off; it was read up to there.",)
    assert len(run.training) == 40


def test_broken_line_in_the_middle_is_named_and_the_rest_is_read(folder):
    log = folder / "log.jsonl"
    lines = log.read_text().splitlines()
    lines[2] = lines[2][:9]
    lines[4] = "[1, 2]"
    log.write_text("\n".join(lines) + "\n")
    run = read_run(folder)
    assert run.notes == ("log.jsonl has lines that are no JSON object, which were left out: 3, 5.",)
    assert len(run.training) == 38


def test_resumed_run_counts_repeated_steps_once_and_by_their_later_line(folder):
    with (folder / "log.jsonl").open("a") as log:
        log.write(json.dumps({"kind": "train", "step": 390, "epoch": 3.9, "loss": 9.0}) + "\n")
    run = read_run(folder)
    assert len(run.training) == 40
    assert run.training[-2]["loss"] == 9.0
    assert run.training[-1]["step"] == 400


def test_missing_parts_are_named(folder):
    for name in ("config.json", "manifest.json", "spectra.jsonl"):
        (folder / name).unlink()
    shutil.rmtree(folder / "scans")
    run = read_run(folder)
    assert run.notes == (
        "config.json is missing.",
        "manifest.json is missing.",
        "No whole scan was found of step 0, 200, 400.",
        "spectra.jsonl is missing.",
    )
    assert len(run.training) == 40


def test_scan_that_the_log_does_not_name_is_found_and_a_broken_one_is_told(folder):
    (folder / "log.jsonl").write_text("")
    (folder / "scans" / "step-00000200" / "scan.json").write_text("{")
    run = read_run(folder)
    assert [one.step for one in run.measurements] == [0, 400]
    assert run.notes == ("No whole scan was found of step 200.",)


def test_runs_are_found_in_folders_by_number(tmp_path, run_folders):
    for seed in (10, 2, 1):
        shutil.copytree(run_folders["one"], tmp_path / "out" / f"seed-{seed}")
    assert [path.name for path in find_runs(tmp_path)] == ["seed-1", "seed-2", "seed-10"]
    assert find_runs(run_folders["one"]) == [run_folders["one"]]


@pytest.mark.parametrize("kind", ["nothing", "a folder without a log.jsonl", "a file"])
def test_what_is_no_run_is_refused_in_one_line(tmp_path, kind):
    place = tmp_path / "place"
    if kind == "a file":
        place.write_text("")
    elif kind != "nothing":
        place.mkdir()
        (place / "manifest.json").write_text('{"format": 1}')  # a scan has one too
    with pytest.raises(UnsmoothError, match=f"but got {kind}. Try `unsmooth train"):
        find_runs(place)
    with pytest.raises(UnsmoothError, match="Expected a run that `unsmooth train` wrote"):
        read_run(place)
