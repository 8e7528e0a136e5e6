"""Pages of made-up runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.report.fakes import HOSTILE
from tests.report.training.fake_runs import write_run
from unsmooth.report.training import write_training_report
from unsmooth.training import find_runs, read_run


@pytest.fixture(scope="session")
def run_folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run, two variants of three and one seed, many variants, and a run that hates its readers."""
    folder = tmp_path_factory.mktemp("runs")
    for seed in (0, 1, 2):
        write_run(folder / "sweep" / "plain" / f"seed-{seed}", seed=seed)
    write_run(folder / "sweep" / "sharp", remedies=("sharpen",), lift=-0.4)
    for rate in range(1, 8):
        write_run(folder / "many" / f"rate-{rate}", epochs=2, changes={"optimiser": {"lr": rate * 1e-4}})
    changes = {"recipe": HOSTILE, "data": {"name": HOSTILE}, HOSTILE: {"deep": HOSTILE}}
    hostile = write_run(folder / "hostile", synthetic=True, state="stopped", epochs=2, changes=changes)
    with (hostile / "log.jsonl").open("a") as log:
        log.write('{"kind": "evaluation", "step": 201, "loss": NaN, "' + HOSTILE + '": 1.5}\n')
        log.write('{"kind": "train", "step": 202, "lo')
    return {
        "one": write_run(folder / "one", epochs=4),
        "sweep": folder / "sweep",
        "many": folder / "many",
        "hostile": hostile,
    }


@pytest.fixture(scope="session")
def reports(run_folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Their pages; takes the place of the pages of scans that other tests of the report open."""
    pytest.importorskip("altair", reason="the report extra is not installed")
    pytest.importorskip("vl_convert", reason="the report extra is not installed")
    folder = tmp_path_factory.mktemp("pages")
    return {
        name: write_training_report([read_run(run) for run in find_runs(place)], folder / f"{name}.html")
        for name, place in run_folders.items()
    }
