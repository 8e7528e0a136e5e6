"""The arena that engines are measured by, and what their overhead is a share of."""

from __future__ import annotations

import json

import pytest

from benchmarks import engines


def test_it_is_forty_runs() -> None:
    plan = engines.arena(10)
    assert sum(plan.runs_of_each) * len(plan.entrants) == engines.RUNS


def test_starts_are_left_out_once_or_for_each_job() -> None:
    one = {"wall_seconds": 60.0, "processes": 2, "job_seconds": 100.0, "start_seconds": 10.0, "jobs": 45}
    assert engines.used({**one, "starts_for_each_job": False}) == pytest.approx(1.0)
    assert engines.used({**one, "wall_seconds": 275.0, "starts_for_each_job": True}) == pytest.approx(1.0)


def test_what_was_measured_has_one_table() -> None:
    if not engines.RESULTS.exists():
        pytest.skip("nothing was measured yet: make bench-engines")
    found = json.loads(engines.RESULTS.read_text())["engines"]
    assert all(one["same_table"] and one["table"] == found["here"]["table"] for one in found.values())
