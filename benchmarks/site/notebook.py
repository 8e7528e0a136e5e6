"""Run a notebook without Jupyter: its cells one after another in one namespace, in a folder of its own."""

from __future__ import annotations

import ast
import contextlib
import io
import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[2] / "docs" / "notebooks"


@dataclass(frozen=True)
class Cell:
    """A cell after it was run.

    Args:
        code: Whether it is code; else it is Markdown.
        source: Its text.
        printed: What it printed.
        shown: The value of its last line; None where there is none.
    """

    code: bool
    source: str
    printed: str = ""
    shown: Any = None


def cells_of(path: Path) -> list[Cell]:
    """The cells as they are in the file."""
    content = json.loads(path.read_text(encoding="utf-8"))
    return [Cell(cell["cell_type"] == "code", "".join(cell["source"])) for cell in content["cells"]]


def run_notebook(path: Path) -> Iterator[Cell]:
    """Run the cells in order; what one raises is raised here, with the cell's own lines in the traceback."""
    scope: dict[str, Any] = {"__name__": "__main__"}
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for number, cell in enumerate(cells_of(path), 1):
            yield _run(cell, scope, f"{path.name}, cell {number}") if cell.code else cell


def _run(cell: Cell, scope: dict[str, Any], where: str) -> Cell:
    tree = ast.parse(cell.source, filename=where)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed, shown = io.StringIO(), None
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, where, "exec"), scope)
        if isinstance(last, ast.Expr):
            shown = eval(compile(ast.Expression(last.value), where, "eval"), scope)
    return Cell(True, cell.source, printed.getvalue(), shown)


def as_markdown(path: Path) -> str:
    """The notebook as a page, with what its cells print and show."""
    parts = []
    for cell in run_notebook(path):
        if not cell.code:
            parts.append(cell.source)
            continue
        parts.append(f"```python\n{cell.source}\n```")
        if cell.printed:
            parts.append(f"```text\n{cell.printed.rstrip()}\n```")
        if cell.shown is not None:
            parts.append(_drawn(cell.shown))
    parts.append(f"This page is [a notebook]({path.name}), run when the site was built.")
    return "\n\n".join(parts)


def _drawn(value: Any) -> str:
    """A chart as a picture, a frame as a table, all else as text."""
    import altair
    import pandas

    from benchmarks.evidence_page import table
    from benchmarks.site.pictures import inline_svg

    if isinstance(value, altair.TopLevelMixin):
        return inline_svg(value)
    if isinstance(value, pandas.DataFrame):
        cells = [[f"{cell:.3g}" if isinstance(cell, float) else str(cell) for cell in row] for row in value.to_numpy()]
        return table([str(column) for column in value.columns], cells)
    return f"```text\n{value if isinstance(value, str) else repr(value)}\n```"
