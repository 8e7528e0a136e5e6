"""What is there does not belong to what is asked for now: told, and nothing is trained or written."""

from __future__ import annotations

from unsmooth.arena.folder import ArenaFolder
from unsmooth.errors import UnsmoothError, expected


class OtherResultsError(UnsmoothError):
    """The folder has results that cannot stand beside those that are wanted."""


def other_results(folder: ArenaFolder, what: str, got: str, first: str = "") -> OtherResultsError:
    """Say so, with what can be done about it.

    Args:
        folder: Of the arena.
        what: What would do.
        got: What is there.
        first: What to try before another folder.
    """
    # Both: runs are taken up where there are no results, and have settings of their own.
    rest = f"another --out, or removing {folder.path / 'results'} and {folder.runs}"
    return OtherResultsError(str(expected(what, got, f"{first}, {rest}" if first else rest)))
