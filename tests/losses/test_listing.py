"""``unsmooth ls losses`` and ``unsmooth ls posthoc``."""

from __future__ import annotations

import json

import pytest

from unsmooth.cli.app import run
from unsmooth.losses import LOSSES
from unsmooth.posthoc import ESTIMATORS


@pytest.mark.parametrize(
    ("what", "registered", "words"),
    [
        ("losses", LOSSES, "we know of no public source for the formula"),
        ("posthoc", ESTIMATORS, "unsmooth.posthoc.Whitening(dimensions=None, shrinkage=0.0)"),
    ],
)
def test_listed(what: str, registered: dict[str, object], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["ls", what, "--json"]) == 0
    assert {entry["name"] for entry in json.loads(capsys.readouterr().out)} == set(registered)
    assert run(["ls", what]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert words in shown
    assert all(name in shown for name in registered)
