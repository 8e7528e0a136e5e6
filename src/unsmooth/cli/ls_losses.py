"""``unsmooth ls losses``: every loss of hidden states, its formula, where it comes from, and what is not known."""

from __future__ import annotations

from typing import Any

READS = {
    "tokens": "tokens of a layer, or rows of a matrix",
    "layers": "tokens of a layer and of the first",
    "views": "the same sequences in two passes",
}


def loss_entries() -> list[dict[str, Any]]:
    """Every loss, ours and other packages', with what it declares."""
    from unsmooth.losses import LOSSES

    return [declared.describe() for declared in LOSSES.values()]


def print_losses(entries: list[dict[str, Any]]) -> None:
    """A paragraph each."""
    from rich.markup import escape
    from rich.padding import Padding

    from unsmooth.cli.console import Console

    console = Console()
    for entry in entries:
        options = ", ".join(f"{key}={value!r}" for key, value in entry["options"].items())
        console.print(f"[bold]{entry['name']}[/bold]" + (f"[dim]({escape(options)})[/dim]" if options else ""))
        facts = {
            "paper": entry["paper"],
            "formula": entry["basis"],
            "reads": READS[entry["reads"]],
            "cost": entry["cost"],
            "too little": entry["degenerate"],
            "not known": entry["unknown"] or "nothing that we know of",
        }
        body = [escape(entry["summary"]), f"[cyan]{escape(entry['equation'])}[/cyan]"]
        body += [f"[dim]{key}:[/dim] {escape(text)}" for key, text in facts.items()]
        console.print(Padding("\n".join(body), (0, 0, 0, 4)))
