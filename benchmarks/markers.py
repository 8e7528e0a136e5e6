"""Markdown that is written by a program: tables, and what stands between two markers of README.md."""

from __future__ import annotations

import re
from collections.abc import Sequence

from unsmooth.errors import expected


def replaced(text: str, begin: str, end: str, block: str) -> str:
    r"""`text` with what stands between the markers replaced.

    >>> replaced("a <!-- b --> old <!-- e --> c", "<!-- b -->", "<!-- e -->", "new")
    'a <!-- b -->\nnew\n<!-- e --> c'
    """
    found = re.findall(f"{re.escape(begin)}.*?{re.escape(end)}", text, re.DOTALL)
    if len(found) != 1:
        raise expected(f"{begin} and {end} once in README.md", f"{len(found)} of them", "adding the markers")
    return text.replace(found[0], f"{begin}\n{block}\n{end}")


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    r"""Markdown; a bar in a cell is escaped.

    >>> print(table(["a"], [["|λ₂|"]]))
    | a |
    | --- |
    | \|λ₂\| |
    """
    lines = [head, ["---"] * len(head), *([cell.replace("|", r"\|") for cell in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
