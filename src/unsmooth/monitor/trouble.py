"""What goes wrong in a monitor: what the next look can do without, told in one line each, once."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from unsmooth.models.watch import SiteError
from unsmooth.scanning.computing import MetricError
from unsmooth.scanning.ranks import world

# Characters of an error that a line has room for.
_LONGEST = 300

logger = logging.getLogger("unsmooth.monitor")


class Teller:
    """Tells of trouble on the error stream, through logging, and never twice of the same.

    Args:
        also: Called with every text that is told.
    """

    def __init__(self, also: Callable[[str], None] = lambda text: None) -> None:
        self.also = also
        self._told: set[str] = set()

    def say(self, text: str, key: str | None = None, *, noted: bool = False) -> None:
        """Tell, unless something was told under this key before; only the first process speaks.

        Args:
            text: What.
            key: What makes it the same as something else; None for the text.
            noted: Whether the sinks have it already.
        """
        key = text if key is None else key
        if key in self._told:
            return
        self._told.add(key)
        if world()[0] == 0:
            logger.warning("unsmooth: %s", text)
            if not noted:
                self.also(text)


def one_line(error: BaseException) -> str:
    """An error in a line.

    >>> one_line(OSError(28, "No space left on device"))
    'OSError: [Errno 28] No space left on device'
    """
    text = _shortened(" ".join(str(error).split()))
    return text if text.startswith("Expected ") else f"{type(error).__name__}: {text}".rstrip(": ")


def _shortened(text: str) -> str:
    """Of a long text the beginning; of a long list of known names those that fit, and how many there are beside.

    >>> _shortened("Expected a known letter but got 1. Known: " + ", ".join("a" * 200) + ".")[-21:]
    'a, a, a and 114 more.'
    """
    if len(text) <= _LONGEST:
        return text
    head, known, names = text.rpartition(" Known: ")
    if not known:
        return text[:_LONGEST] + "…"
    every = names.removesuffix(".").split(", ")
    shown = every[: max(1, len(text[len(head + known) : _LONGEST].split(", ")) - 1)]
    return f"{head}{known}{', '.join(shown)} and {len(every) - len(shown)} more."


@dataclass(frozen=True)
class Problem:
    """What goes from process to process of a look that failed.

    Args:
        text: In one line.
        site: The site that alone is to blame, if one is.
        metric: The metric that alone is to blame, if one is.
        lasting: Whether the next look with it will fail too.
    """

    text: str
    site: str = ""
    metric: str = ""
    lasting: bool = False

    @classmethod
    def of(cls, error: Exception) -> Problem:
        """What an error tells."""
        if isinstance(error, SiteError):
            return cls(one_line(error), site=error.site, lasting=True)
        if isinstance(error, MetricError):
            return cls(one_line(error), metric=error.metric, lasting=error.lasting)
        return cls(one_line(error))

    @property
    def culprit(self) -> str:
        """Who is to blame, in words; nothing where nobody is known to be."""
        return f"the site {self.site!r}" if self.site else f"the metric {self.metric!r}" if self.metric else ""
