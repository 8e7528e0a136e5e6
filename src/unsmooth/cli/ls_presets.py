"""``unsmooth ls presets``: every published definition, where it comes from, and what about it is not known."""

from __future__ import annotations

from typing import Any


def preset_entries() -> list[dict[str, Any]]:
    """Every preset with all it fixes."""
    from unsmooth.presets import PRESETS

    return [preset.describe() for preset in PRESETS.values()]


def print_presets(entries: list[dict[str, Any]]) -> None:
    """A paragraph each."""
    from rich.markup import escape
    from rich.padding import Padding

    from unsmooth.cli.console import Console

    console = Console()
    for entry in entries:
        console.print(
            f"[bold]{entry['name']}[/bold]  [dim]{escape(entry['quantity'])} · {escape(entry['basis'])}[/dim]"
        )
        metric = entry["metrics"][0] + (f" − {entry['minus']}" if entry["minus"] else "")
        facts = {
            "source": entry["source"],
            "metric": f"{metric}, {entry['tokens']} tokens, at {' and '.join(entry['sites'])}",
            "average": entry["aggregation"],
            "not known": "; ".join(entry["unknown"]) or "nothing that we know of",
        }
        body = [escape(entry["summary"])]
        body += [f"[dim]{key}:[/dim] {escape(text)}" for key, text in facts.items()]
        console.print(Padding("\n".join(body), (0, 0, 0, 4)))
