"""A folder of its own for every test: tokens are cached under the working directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.tasks.building import a_text
from unsmooth.training.place import Place


@pytest.fixture(autouse=True)
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Place, "wait", lambda self: None)  # there is no second process to wait for
    return tmp_path


@pytest.fixture
def text(workplace: Path) -> Path:
    return a_text(workplace)
