"""The packages of the `report` extra."""

from __future__ import annotations

from typing import Any

from unsmooth import extras


def import_extra(name: str) -> Any:
    """Import a package of the `report` extra, or say how to get it."""
    return extras.import_extra(name, extra="report", purpose="which draws the charts")
