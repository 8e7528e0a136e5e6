"""What other packages bring by entry points, over all rooms that take some."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec

from unsmooth.plugins import Plugin, PluginWarning, unread_plugins

GROUPS: Mapping[str, tuple[str, str]] = {
    "unsmooth.metrics": ("unsmooth.functional", "METRICS"),
    "unsmooth.hosts": ("unsmooth.models", "HOSTS"),
    "unsmooth.remedies": ("unsmooth.remedies", "REMEDIES"),
    "unsmooth.losses": ("unsmooth.losses", "LOSSES"),
    "unsmooth.posthoc": ("unsmooth.posthoc", "ESTIMATORS"),
    "unsmooth.presets": ("unsmooth.presets", "PRESETS"),
}
"""Entry point group to the room and the registry that reads it."""


def all_plugins() -> list[Plugin]:
    """Every entry point of other packages, loaded; what is wrong with one is in its `problem`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PluginWarning)
        return [plugin for group in GROUPS for plugin in _plugins(group)]


def _plugins(group: str) -> tuple[Plugin, ...]:
    room, registry = GROUPS[group]
    if find_spec(room) is None:
        return unread_plugins(group, f"This version of unsmooth has no {group.removeprefix('unsmooth.')}.")
    found: tuple[Plugin, ...] = getattr(import_module(room), registry).plugins
    return found
