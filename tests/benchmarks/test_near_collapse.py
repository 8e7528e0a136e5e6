"""The page of errors near collapse is what was measured, and what was measured holds the bar."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from benchmarks.near_collapse import DIVERSITIES, METRICS, SCALES, errors, page

ROOT = Path(__file__).parents[2]
RESULTS = json.loads((ROOT / "benchmarks/results/near_collapse.json").read_text())


def test_the_page_is_made_of_the_results() -> None:
    assert (ROOT / "docs/numerics.md").read_text() == page(RESULTS)


@pytest.mark.parametrize("found", [RESULTS["now"], errors(1)], ids=["as written down", "measured again"])
def test_errors_stay_below_the_bar(found: dict[str, dict[str, dict[str, float | None]]]) -> None:
    for by, values in (("diversity", DIVERSITIES), ("residual", DIVERSITIES), ("scale", SCALES)):
        assert list(found[by]) == list(METRICS)
        for name, row in found[by].items():
            known = [error for error in row.values() if error is not None and error == error]
            assert len(known) == len(values) - (3 if by == "scale" and name == "dirichlet_energy" else 0)
            assert max(known) < 1e-5
