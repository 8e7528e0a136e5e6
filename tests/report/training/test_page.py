"""The page of a training as a file: whole, small, closed to the network, escaped."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.report.fakes import HOSTILE
from tests.report.test_html import block, without_runtime
from unsmooth.errors import UnsmoothError
from unsmooth.report.training import training_html
from unsmooth.training import read_run

pytest.importorskip("altair", reason="the report extra is not installed")
pytest.importorskip("vl_convert", reason="the report extra is not installed")


def test_policy_forbids_the_network_and_foreign_scripts(reports: dict[str, Path]) -> None:
    page = without_runtime(reports["sweep"])
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    assert policy
    assert policy[1].startswith("default-src &#39;none&#39;; script-src &#39;sha256-")
    assert not re.search(r"""<(script|img|iframe)[^>]*\ssrc=|<link[^>]*href=["']?http""", page)


def test_hostile_text_is_escaped(reports: dict[str, Path]) -> None:
    page = reports["hostile"].read_text(encoding="utf-8")
    assert HOSTILE not in page
    assert "<img" not in without_runtime(reports["hostile"])
    assert page.count("<script") == page.count("</script>") == 3


def test_data_is_strict_json_with_null_for_what_is_not_finite(reports: dict[str, Path]) -> None:
    data = block(reports["hostile"].read_text(encoding="utf-8"), "training-data")
    panel = data["boards"]["loss"]["panels"][0]
    assert data["columns"][panel["tables"]["sparse"]["mean"]][-1] is None


def test_boards_are_there_and_know_their_pictures(reports: dict[str, Path]) -> None:
    data = block(reports["sweep"].read_text(encoding="utf-8"), "training-data")
    boards = data["boards"]
    assert list(boards) == ["loss", "metrics", "similarity", "moments", "spectrum", "quantiles", "optimiser"]
    assert boards["similarity"]["places"] == [[0, 2, 4], [1, 3, 5]]  # two variants, three metrics
    assert data["time"] == "epoch"
    assert "x_i·x_j" in boards["similarity"]["readings"][0]


def test_synthetic_data_stop_and_notes_are_told(reports: dict[str, Path]) -> None:
    page = reports["hostile"].read_text(encoding="utf-8")
    assert "<strong>Synthetic data.</strong>" in page
    assert "<strong>Stopped.</strong>" in page
    assert "The last line of log.jsonl is cut off" in page
    assert "Synthetic" not in without_runtime(reports["one"])


def test_long_logs_and_many_runs_stay_under_three_megabytes(run_folders: dict[str, Path]) -> None:
    run = read_run(run_folders["one"])
    lines = tuple(
        {"step": step, "epoch": step / 100, "loss": math.sin(step) / 3, "lr": step / 7, "gradient_norm": step / 9}
        for step in range(1, 8_001)
    )
    measurements = tuple(replace(run.measurements[-1], step=step * 100, epoch=step / 3) for step in range(90))
    spectra = tuple(run.spectra[-1] | {"step": step * 100, "epoch": step / 3} for step in range(90))
    long = replace(run, training=lines, measurements=measurements, spectra=spectra)
    runs = [replace(long, folder=Path(str(rate)), config={**run.config, "batch": rate}) for rate in range(6)]
    page = training_html(runs)
    assert len(page.encode()) < 3_000_000
    assert "of 90 measurements, evenly chosen" in page
    columns = block(page, "training-data")["columns"]
    assert max(len(column["at"] if isinstance(column, dict) else column) for column in columns) <= 2000 * 6


def test_run_that_logged_nothing_still_has_a_page(run_folders: dict[str, Path]) -> None:
    run = read_run(run_folders["one"])
    page = training_html([replace(run, training=(), evaluations=(), measurements=(), spectra=())])
    assert "No loss was logged." in page
    assert "No scan was taken" in page
    assert block(page, "training-data")["boards"] == {}


def test_no_run_is_refused() -> None:
    with pytest.raises(UnsmoothError, match="Expected at least one run but got none"):
        training_html([])
