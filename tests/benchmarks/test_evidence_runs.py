"""Studies side by side: what is left, how they are started, how it ends."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import evidence_runs
from tests.evidence.trained import run
from unsmooth.errors import UnsmoothError
from unsmooth.evidence import STUDIES, Bench


def words(folder: Path, *more: str) -> list[str]:
    return [*more, "--scale", "tiny", "--out", str(folder / "out"), "--runs", str(folder / "runs")]


def test_what_is_there_is_not_left(tmp_path: Path) -> None:
    bench = Bench(scale="tiny", out=tmp_path)
    study = STUDIES["bases"]
    wanted = [(variant, seed) for variant in study.configs(bench) for seed in study.seeds(bench)]
    assert sum(len(lane.variants) for lane in evidence_runs.missing("bases", bench)) == len(wanted)
    bench.store.write_study("bases", "tiny", [run(*wanted[0], 0.5), run("another", 0, 0.5)])
    left = [(variant, lane.seed) for lane in evidence_runs.missing("bases", bench) for variant in lane.variants]
    assert sorted(left) == sorted(set(wanted) - {wanted[0]})


def test_six_runs_of_a_seed_are_three_and_three(tmp_path: Path) -> None:
    bench = Bench(scale="tiny", out=tmp_path)
    assert [len(lane.variants) for lane in evidence_runs.missing("less_data", bench)] == [3, 3] * len(bench.seeds)


@pytest.mark.parametrize(("codes", "ends"), [({"bases": 0, "steering": 0}, 0), ({"bases": 0, "steering": 3}, 3)])
def test_exit_code(codes: dict[str, int], ends: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        evidence_runs, "train_side_by_side", lambda left, *_: {lane: codes[lane.study] for lane in left}
    )
    assert evidence_runs.main(words(tmp_path, *codes)) == ends


def test_each_is_a_process_that_knows_how_many_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def instead(*given: Any) -> list[str]:
        asked.append(original(*given))
        return [sys.executable, "-c", f"print('said'); raise SystemExit({2 if given[0].study == 'bases' else 3})"]

    original = evidence_runs._words
    monkeypatch.setattr(evidence_runs, "_words", instead)
    assert evidence_runs.main(words(tmp_path, "bases", "steering", "--minutes", "2")) == 2
    seeds = [str(seed) for seed in Bench(scale="tiny").seeds]
    said = [(one[one.index("train") + 1], one[one.index("--seed") + 1]) for one in asked]
    assert said == [(name, seed) for name in ("bases", "steering") for seed in seeds]
    assert all(one[one.index("--sharing") + 1] == str(len(asked)) for one in asked)
    assert all(one[one.index("--minutes") + 1] == "2" for one in asked)
    assert (tmp_path / "runs" / f"steering-seed{seeds[-1]}-plain-sharpen-smooth.log").read_text() == "said\n"


def test_bad_words_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnsmoothError, match="stering"):
        evidence_runs.main(words(tmp_path, "stering"))
    monkeypatch.setattr("shutil.which", lambda _: None)
    with pytest.raises(UnsmoothError, match="the same without --mps"):
        evidence_runs.main(words(tmp_path, "bases", "--mps"))
