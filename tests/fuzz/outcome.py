"""What a part of the fuzz found."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Outcome:
    """Counts of one part, and what it found.

    Each part is a module of this package with ``run(seed, seconds, tries=None, first=False) -> Outcome``: it stops
    after `seconds`, after `tries` tries where that is given, or at the `first` finding if so asked, and the same seed
    makes the same tries.

    Args:
        tries: Inputs tried.
        past: Of these, how many got past the first check of what read them.
        findings: One line each, enough to try it again.
        counts: By what was tried: how many got past the first check, and how many there were.
    """

    tries: int = 0
    past: int = 0
    findings: list[str] = field(default_factory=list)
    counts: dict[str, tuple[int, int]] = field(default_factory=dict)
