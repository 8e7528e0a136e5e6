"""Notebooks are kept without outputs; building the site runs them from top to bottom."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from benchmarks.site.notebook import FOLDER, run_notebook

NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


def test_there_are_some_and_they_are_kept_clean() -> None:
    assert len(NOTEBOOKS) >= 3
    for path in NOTEBOOKS:
        content = json.loads(path.read_text(encoding="utf-8"))
        assert content["nbformat"] == 4
        ids = [cell["id"] for cell in content["cells"]]
        assert len(set(ids)) == len(ids)
        for cell in content["cells"]:
            assert not cell.get("outputs"), f"{path.name}: clear all outputs"
        assert content["cells"][0]["source"][0].startswith("# ")


def test_what_a_cell_prints_and_shows_is_kept(tmp_path: Path) -> None:
    cells = [{"cell_type": "code", "source": ["print('a')\n", "b = 2"]}, {"cell_type": "code", "source": ["b + 1"]}]
    path = tmp_path / "small.ipynb"
    path.write_text(json.dumps({"cells": cells}))
    first, second = run_notebook(path)
    assert (first.printed, first.shown) == ("a\n", None)
    assert (second.printed, second.shown) == ("", 3)


def test_an_error_names_the_cell(tmp_path: Path) -> None:
    path = tmp_path / "broken.ipynb"
    path.write_text(json.dumps({"cells": [{"cell_type": "code", "source": ["1 / 0"]}]}))
    with pytest.raises(ZeroDivisionError) as raised:
        list(run_notebook(path))
    assert str(raised.traceback[-1].path).endswith("broken.ipynb, cell 1")
