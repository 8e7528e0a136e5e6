"""The sentence about published definitions in docs/scan.md is that of its numbers."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from benchmarks import definitions


def test_the_page_says_what_was_measured() -> None:
    text, facts = (
        definitions.PAGE.read_text(encoding="utf-8"),
        json.loads(definitions.RESULT.read_text(encoding="utf-8")),
    )
    assert f"{definitions.BEGIN}\n{definitions.sentence(facts)}\n{definitions.END}" in text


def test_the_gap_is_that_of_the_curves() -> None:
    facts = json.loads(definitions.RESULT.read_text(encoding="utf-8"))
    [gap] = facts["gaps"]
    curves = np.array([facts["curves"][name] for name in facts["quantities"][gap["quantity"]]])
    assert gap["size"] == pytest.approx(np.ptp(curves, axis=0).max())
    assert set(facts["more_alike"]) == set(facts["curves"])
    assert set(facts["more_alike"].values()) <= {"more", "less", "open"}


def test_measured_and_written_anew(standins: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page, out = tmp_path / "scan.md", tmp_path / "definitions.json"
    page.write_text(f"before\n{definitions.BEGIN}\nold\n{definitions.END}\nafter\n", encoding="utf-8")
    monkeypatch.setattr("sys.argv", ["definitions", "--out", str(out), "--page", str(page)])
    definitions.main()
    lines = page.read_text(encoding="utf-8").splitlines()
    assert (lines[:2], lines[-2:]) == (["before", definitions.BEGIN], [definitions.END, "after"])
    facts = json.loads(out.read_text(encoding="utf-8"))
    assert "\n".join(lines[2:-2]) == definitions.sentence(facts)
    said = re.findall(
        r"of (\d+) definitions (\d+) say that its\stokens grow more alike with depth, (\d+) less, (\d+) neither",
        "\n".join(lines),
    )
    total, *parts = map(int, said[0])
    assert total == sum(parts) == len(facts["curves"])
