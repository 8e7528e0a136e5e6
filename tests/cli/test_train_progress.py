"""What is shown of runs where there is no terminal: each thing once."""

from __future__ import annotations

import pytest

from unsmooth.cli.train_progress import shown_progress
from unsmooth.training import Progress


def progress(name: str, step: int, note: str = "", **said: float) -> Progress:
    return Progress(name, step, 4, 0.0, 1.0, said, note)


def test_notes_are_told_once_and_lines_only_where_they_say_something_new(capsys: pytest.CaptureFixture[str]) -> None:
    with shown_progress(quiet=False) as tell:
        for name in ("one", "two"):
            tell(progress(name, 0, "The data are made up."))
            tell(progress(name, 1))  # too soon for a line
            for _ in range(2):
                tell(progress(name, 4, **{"evaluation/loss": 0.5}))
    assert capsys.readouterr().err.splitlines() == [
        "The data are made up.",
        "one: step 0 of 4",
        "one: step 4 of 4, 0 s left, evaluation loss 0.500",
        "two: step 0 of 4",
        "two: step 4 of 4, 0 s left, evaluation loss 0.500",
    ]
