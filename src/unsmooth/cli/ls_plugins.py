"""``unsmooth ls plugins``: what other packages bring by entry points, and whether it works."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import typer

from unsmooth.cli.console import say
from unsmooth.doctor.plugins import GROUPS, all_plugins


def plugin_entries() -> list[dict[str, Any]]:
    """Every entry point of other packages, loaded."""
    return [asdict(plugin) for plugin in all_plugins()]


def print_plugins(entries: list[dict[str, Any]]) -> None:
    """A line each; those that failed say why."""
    if not entries:
        typer.echo(f"No plugins: no installed package has an entry point in {', '.join(GROUPS)}.")
    for entry in entries:
        of = f"{entry['value']} of {entry['package']}"
        name = entry["item"] or entry["name"]
        state = f"failed to load: {entry['problem']}" if entry["problem"] else "works"
        say(f"{entry['group']}: {name} ({of}) {state}")
