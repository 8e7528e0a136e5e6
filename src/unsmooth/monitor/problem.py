"""Why a look at a model failed, and what the next one can do without."""

from __future__ import annotations

from dataclasses import dataclass

from unsmooth.models.watch import SiteError
from unsmooth.monitor.telling import one_line
from unsmooth.scanning.computing import MetricError


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
