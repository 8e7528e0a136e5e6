"""Numbers of the pictures against numpy."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from unsmooth.report.training.rows import curve_rows, grid_rows, quantile_rows, similarity_grids, times_of
from unsmooth.report.training.table import final_table
from unsmooth.report.training.variants import Variant, variants_of
from unsmooth.training import TrainedRun, find_runs, read_run

NAN = math.nan


def logged(losses: list[float]) -> TrainedRun:
    lines = tuple({"step": step + 1, "epoch": step / 50, "loss": loss} for step, loss in enumerate(losses))
    return TrainedRun(Path("run"), training=lines)


def column(rows, name):
    return np.array([row[name] for row in rows], dtype=float)


def test_long_log_is_binned_to_means_with_smallest_and_largest():
    losses = np.random.default_rng(0).lognormal(size=10_007)
    rows = curve_rows(Variant("a", "", (logged(losses.tolist()),)), "training", "loss", "a", most=500)
    width = 21  # the least with which 500 bins hold 10,007 lines
    bins = [losses[start : start + width] for start in range(0, len(losses), width)]
    assert len(rows) == len(bins) <= 500
    for name, take in (("mean", np.mean), ("low", np.min), ("high", np.max)):
        np.testing.assert_allclose(column(rows, name), [take(part) for part in bins], rtol=1e-4)
    assert rows[0]["step"] == 11
    assert rows[0]["count"] == width


def test_short_log_is_drawn_as_it_is_and_what_is_not_finite_is_a_gap():
    rows = curve_rows(Variant("a", "", (logged([3.0, NAN, math.inf, 1.0]),)), "training", "loss", "a")
    assert [row["mean"] for row in rows] == [3.0, None, None, 1.0]
    assert [row["step"] for row in rows] == [1, 2, 3, 4]


def test_seeds_give_their_mean_and_their_smallest_and_largest():
    found = np.random.default_rng(1).normal(size=(3, 40))
    seeds = Variant("a", "", tuple(logged(row.tolist()) for row in found))
    rows = curve_rows(seeds, "training", "loss", "a", most=10)
    means = found.reshape(3, 10, 4).mean(axis=2)
    np.testing.assert_allclose(column(rows, "mean"), means.mean(axis=0), rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(column(rows, "low"), means.min(axis=0), rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(column(rows, "high"), means.max(axis=0), rtol=1e-3, atol=1e-4)


def test_map_of_seeds_is_their_mean(run_folders):
    runs = [read_run(path) for path in find_runs(run_folders["sweep"] / "plain")]
    variant = variants_of(runs)[0]
    assert variant.spread == "3 seeds"
    grids = similarity_grids(variant, "token_similarity", "residual")
    times = times_of({one.step: one.epoch for one in runs[0].measurements}, 50)
    cell = next(row for row in grid_rows(grids, times) if (row["time"], row["layer"]) == ("10", 4))
    values = [
        next(row.mean for row in run.measurements[-1].scan.rows if (row.metric, row.layer) == ("token_similarity", 4))
        for run in runs
    ]
    assert len(set(values)) == 3
    assert cell["value"] == pytest.approx(np.mean(values), rel=1e-4)
    assert (cell["low"], cell["high"]) == (pytest.approx(min(values)), pytest.approx(max(values)))


def test_quantiles_are_those_of_the_file(run_folders):
    run = read_run(run_folders["one"])
    rows = quantile_rows(variants_of([run])[0], 2, {})
    assert [row["step"] for row in rows] == [0, 200, 400]
    assert [rows[1][name] for name in ("lowest", "q50", "highest")] == run.spectra[1]["layers"][1]["quantiles"][::3]


def test_final_table_has_mean_and_sample_deviation_of_seeds(run_folders):
    runs = [read_run(path) for path in find_runs(run_folders["sweep"] / "plain")]
    table = final_table(variants_of(runs))
    assert [summed for summed, _ in table.lines] == [False, False, False, True]
    place = table.headings.index("accuracy")
    values = [run.evaluations[-1]["accuracy"] for run in runs]
    assert table.lines[3][1][place] == f"{np.mean(values):.4f} ± {np.std(values, ddof=1):.4f}"
    assert table.lines[0][1][table.headings.index("mean cosine start")] == "0.08"
