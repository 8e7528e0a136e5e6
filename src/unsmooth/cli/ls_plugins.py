"""``unsmooth ls plugins``: what other packages bring by entry points, and whether it works."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import asdict
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import typer

from unsmooth.plugins import Plugin, PluginWarning, unread_plugins

GROUPS: Mapping[str, tuple[str, str]] = {
    "unsmooth.metrics": ("unsmooth.functional", "METRICS"),
    "unsmooth.hosts": ("unsmooth.models", "HOSTS"),
    "unsmooth.remedies": ("unsmooth.remedies", "REMEDIES"),
    "unsmooth.presets": ("unsmooth.presets", "PRESETS"),
}
"""Entry point group to the room and the registry that reads it."""


def plugin_entries() -> list[dict[str, Any]]:
    """Every entry point of other packages, loaded."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PluginWarning)  # the list itself says what is wrong
        return [asdict(plugin) for group in GROUPS for plugin in _plugins(group)]


def _plugins(group: str) -> tuple[Plugin, ...]:
    room, registry = GROUPS[group]
    if find_spec(room) is None:
        return unread_plugins(group, f"This version of unsmooth has no {group.removeprefix('unsmooth.')}.")
    found: tuple[Plugin, ...] = getattr(import_module(room), registry).plugins
    return found


def print_plugins(entries: list[dict[str, Any]]) -> None:
    """A line each; those that failed say why."""
    if not entries:
        typer.echo(f"No plugins: no installed package has an entry point in {', '.join(GROUPS)}.")
    for entry in entries:
        of = f"{entry['value']} of {entry['package']}"
        name = entry["item"] or entry["name"]
        state = f"failed to load: {entry['problem']}" if entry["problem"] else "works"
        typer.echo(f"{entry['group']}: {name} ({of}) {state}")
