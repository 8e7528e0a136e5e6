"""Tables that fit a terminal: lines break between words, and where that is not enough columns are left out."""

from __future__ import annotations

from collections.abc import Sequence

# What rich puts to the left and the right of a cell.
_PADDING = 2


def fitting(heads: Sequence[str], rows: Sequence[Sequence[str]], width: int, spare: Sequence[str]) -> dict[int, int]:
    """Columns that fit a terminal, by place, with the width of each: no word of a cell is broken.

    Args:
        heads: Of all columns.
        rows: Their cells.
        width: Of the terminal.
        spare: Heads of columns that may be left out, those that are missed least first.

    Example:
        >>> fitting(["remedy", "verdict", "memory"], [["sharpen", "no difference shown", "12 MiB"]], 26, ["memory"])
        {0: 7, 1: 15}
        >>> fitting(["remedy", "verdict", "memory"], [["sharpen", "no difference shown", "12 MiB"]], 80, ["memory"])
        {0: 7, 1: 19, 2: 6}
    """
    columns = {place: [head, *(row[place] for row in rows)] for place, head in enumerate(heads)}
    least = {place: max(_longest_word(cell) for cell in cells) for place, cells in columns.items()}
    for head in spare:
        if sum(least.values()) + _PADDING * len(least) <= width:
            break
        least.pop(heads.index(head), None)
    left = width - sum(least.values()) - _PADDING * len(least)
    widths = {}
    for place, narrow in least.items():
        more = max(0, min(left, max(map(len, columns[place])) - narrow))
        widths[place] = narrow + more
        left -= more
    return widths


def _longest_word(text: str) -> int:
    return max(map(len, text.split()), default=0)
