"""What the doctor looked at, and what it found."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal

State = Literal["ok", "missing", "broken", "note"]
"""missing: nothing is wrong, but something more could be had. note: to be known."""


@dataclass(frozen=True)
class Check:
    """One thing that was looked at.

    Args:
        part: Where it belongs, such as "core" or "extra hf".
        name: What it is.
        state: How it is.
        found: What was found, such as a version.
        hint: What to do about it; empty where nothing is to be done.
    """

    part: str
    name: str
    state: State
    found: str = ""
    hint: str = ""

    def __str__(self) -> str:
        said = f"{self.state:<8}{self.name}" + (f": {self.found}" if self.found else "")
        return said.rstrip(".") + (f". Try {self.hint}" if self.hint else "")


CORE = "core"


@dataclass(frozen=True)
class Examination:
    """All of it.

    Args:
        about: Versions of unsmooth, Python and the system.
        checks: Part by part.
    """

    about: str
    checks: tuple[Check, ...]

    @property
    def works(self) -> bool:
        """Whether the core does: its packages are there and a small scan went well."""
        return all(check.state in ("ok", "note") for check in self.checks if check.part == CORE)

    @property
    def verdict(self) -> str:
        """One sentence."""
        if not self.works:
            wrong = [check.name for check in self.checks if check.part == CORE and check.state in ("missing", "broken")]
            return f"The core does not work: see {', '.join(wrong)}."
        broken = [check.name for check in self.checks if check.state == "broken"]
        return "The core works." + (f" Broken: {', '.join(broken)}." if broken else "")

    def to_json(self) -> dict[str, Any]:
        """In types that JSON has."""
        checks = [asdict(check) for check in self.checks]
        return {"about": self.about, "works": self.works, "verdict": self.verdict, "checks": checks}

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield self.about
        for part in dict.fromkeys(check.part for check in self.checks):
            yield ""
            yield part
            yield from (f"  {check}" for check in self.checks if check.part == part)
        yield ""
        yield self.verdict
