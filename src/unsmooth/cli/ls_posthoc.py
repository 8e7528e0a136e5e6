"""``unsmooth ls posthoc``: every estimator for embeddings, its formula, source and settings."""

from __future__ import annotations

from typing import Any

import typer

from unsmooth.cli.console import say


def estimator_entries() -> list[dict[str, Any]]:
    """Every estimator, ours and other packages', with what it declares."""
    from unsmooth.posthoc import ESTIMATORS

    return [
        {
            "name": name,
            "class": kind.__name__,
            "summary": kind.summary,
            "equation": kind.equation,
            "paper": kind.paper,
            "settings": kind().get_params(),
        }
        for name, kind in ESTIMATORS.items()
    ]


def print_estimators(entries: list[dict[str, Any]]) -> None:
    """A paragraph each."""
    for entry in entries:
        settings = ", ".join(f"{key}={value!r}" for key, value in entry["settings"].items())
        say(f"{entry['name']}: {entry['summary']}")
        typer.echo(f"    {entry['equation']}; {entry['paper']}")
        typer.echo(f"    unsmooth.posthoc.{entry['class']}({settings})")
