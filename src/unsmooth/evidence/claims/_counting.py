"""The rule for statements that say "never" or "always"."""

from __future__ import annotations

from unsmooth.evidence.finding import Finding
from unsmooth.evidence.interval import share

RARE = 0.01


def never(what: str, violations: int, of: int) -> Finding:
    """A share of violations: one refutes; none confirms once so many tries leave room for less than one in a hundred.

    Args:
        what: What was counted, in words.
        violations: How often the statement failed.
        of: How often it was tried.

    Example:
        >>> [never("", count, tries).verdict for count, tries in ((0, 1000), (0, 50), (1, 1000))]
        ['confirmed', 'undecided', 'refuted']
    """
    found = share(violations, of)
    if violations:
        return Finding(what, found, "refuted")
    return Finding(what, found, "confirmed" if found.high < RARE else "undecided")
