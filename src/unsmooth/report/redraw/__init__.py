"""Published kinds of figure, drawn again for any model by one command, with the definition beside the curve."""

from unsmooth.report.redraw.kind import KINDS, Kind, redraw

__all__ = ["KINDS", "Kind", "redraw"]
