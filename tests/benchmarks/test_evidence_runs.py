"""Studies one after another: what is trained, and how it ends."""

from __future__ import annotations

import pytest

from benchmarks import evidence_runs
from unsmooth.errors import UnsmoothError
from unsmooth.evidence import STUDIES


@pytest.mark.parametrize(("codes", "ends"), [((0, 0), 0), ((0, 3), 3), ((2, 3), 2)])
def test_exit_code(codes: tuple[int, int], ends: int, monkeypatch: pytest.MonkeyPatch) -> None:
    by_study, asked = dict(zip(("bases", "steering"), codes, strict=True)), list[list[str]]()
    monkeypatch.setattr(evidence_runs, "run", lambda words: (asked.append(words), by_study[words[2]])[1])
    assert evidence_runs.main([*by_study, "--total-budget", "2m"]) == ends
    assert [words[2] for words in asked] == list(by_study)
    assert all(words[-2:] == ["--total-budget", "2m"] for words in asked)


def test_by_default_all_studies(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[str]()
    monkeypatch.setattr(evidence_runs, "run", lambda words: asked.append(words[2]) or 0)
    assert evidence_runs.main([]) == 0
    assert asked == list(STUDIES)


def test_bad_words_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnsmoothError, match="stering"):
        evidence_runs.main(["stering"])
    monkeypatch.setattr("shutil.which", lambda _: None)
    with pytest.raises(UnsmoothError, match="the same without --mps"):
        evidence_runs.main(["bases", "--mps"])
