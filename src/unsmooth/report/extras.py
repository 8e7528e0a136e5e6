"""The packages of the `report` extra."""

from __future__ import annotations

import importlib
from typing import Any

from unsmooth.errors import expected


def import_extra(name: str) -> Any:
    """Import a package of the `report` extra, or say how to get it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        wanted = f"the package {name}, which draws the charts,"
        raise expected(wanted, f"an environment without it ({error})", 'pip install "unsmooth[report]"') from None
