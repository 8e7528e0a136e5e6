"""Parts of README.md that are written by a program: what stands between two markers."""

from __future__ import annotations

import re

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
