"""Packages that only some of unsmooth needs: imported when they are used, and named with their extra when missing."""

from __future__ import annotations

import importlib
from typing import Any

from unsmooth.errors import expected


def import_extra(name: str, *, extra: str, purpose: str) -> Any:
    """Import a package of an extra, or say how to get it.

    Args:
        name: The module.
        extra: The extra of unsmooth that installs it.
        purpose: What it does here, such as "which draws the charts".

    >>> import_extra("no_such", extra="report", purpose="which draws the charts")
    Traceback (most recent call last):
    unsmooth.errors.UnsmoothError: Expected the package no_such, which draws the charts, but got an environment without
    it (No module named 'no_such'). Try pip install "unsmooth[report]".
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        got = f"an environment without it ({error})"
        raise expected(f"the package {name}, {purpose},", got, f'pip install "unsmooth[{extra}]"') from None
