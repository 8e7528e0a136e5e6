"""``unsmooth ls metrics|models``: what there is, with definitions."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from unsmooth.errors import unknown_name


def ls(
    what: Annotated[str, typer.Argument(metavar="metrics|models", help="What to list.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
) -> int:
    """List the metrics or the models that unsmooth knows."""
    kinds = {"metrics": metric_entries, "models": model_entries}
    if what not in kinds:
        raise unknown_name("list", what, kinds)
    entries = kinds[what]()
    if as_json:
        typer.echo(json.dumps(entries, ensure_ascii=False))
    else:
        _print(entries)
    return 0


def metric_entries() -> list[dict[str, Any]]:
    """Every registered metric with what it declares."""
    from unsmooth.functional import METRICS

    return [
        {
            "name": metric.name,
            "definition": metric.definition,
            "options": dict(metric.function.__kwdefaults__ or {}),
            "reads": metric.reads,
            "cost": metric.cost,
            "default": metric.default,
            "differentiable": metric.differentiable,
            "invariances": sorted(metric.invariances),
            "chance": metric.chance_note,
            "degenerate": metric.degenerate,
            "paper": metric.paper,
        }
        for metric in METRICS.values()
    ]


def model_entries() -> list[dict[str, Any]]:
    """Every registered host with the blocks it recognises."""
    from unsmooth.models import HOSTS

    return [
        {"name": host.name, "blocks": ", ".join(host.blocks), "example": host.example} for host in HOSTS.values()
    ] + [{"name": "any nn.Module", "blocks": 'blocks="encoder.layers.*"', "example": "residual site only"}]


def _print(entries: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    shown = [
        key for key in ("name", "definition", "options", "cost", "default", "blocks", "example") if key in entries[0]
    ]
    table = Table(*shown, show_lines="definition" in shown)
    for entry in entries:
        table.add_row(*(escape(_text(entry[key])) for key in shown))
    Console().print(table)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else ""
    if isinstance(value, dict):
        return ", ".join(f"{key}={item!r}" for key, item in value.items())
    return str(value)
