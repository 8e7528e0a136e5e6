"""Published kinds of figure, drawn again for any model by one command, with the definition beside the curve."""

from unsmooth.report.redraw.kind import KINDS, Kind
from unsmooth.report.redraw.run import redraw

__all__ = ["KINDS", "Kind", "redraw"]
