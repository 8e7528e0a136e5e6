"""``unsmooth ls metrics|presets|models|remedies|losses|posthoc|recipes|claims|studies|plugins``: what there is."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from importlib.resources import files
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from unsmooth.cli.console import Console, say
from unsmooth.cli.options import Debug
from unsmooth.doctor.checks import GROUPS, all_plugins
from unsmooth.errors import unknown_name

READS = {
    "tokens": "token vectors",
    "pair": "a layer and the one before",
    "grid": "patches of images",
    "attention": "attention maps",
    "words": "a word in many sequences",
    "sequences": "tokens of different sequences",
}

_LOSS_READS = {
    "tokens": "tokens of a layer, or rows of a matrix",
    "layers": "tokens of a layer and of the first",
    "views": "the same sequences in two passes",
}

_IN_A_DECODER = {
    "unchanged": "nothing looks across tokens",
    "prefix mean": "means are over the tokens seen so far",
    "masked": "only tokens seen so far are looked at",
    "none": "refused: tokens would see later ones",
}


def ls(
    what: Annotated[
        str,
        typer.Argument(
            metavar="metrics|presets|models|remedies|losses|posthoc|recipes|claims|studies|plugins",
            help="What to list.",
        ),
    ],
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]…", help="Of these alone; all where none is named.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    debug: Debug = False,
) -> int:
    """List what unsmooth knows, with definitions, papers and options."""
    kinds = {
        "metrics": (metric_entries, print_metrics),
        "presets": (preset_entries, print_presets),
        "models": (model_entries, print_models),
        "remedies": (remedy_entries, print_remedies),
        "losses": (loss_entries, print_losses),
        "posthoc": (estimator_entries, print_estimators),
        "recipes": (recipe_entries, print_recipes),
        "claims": (claim_entries, print_claims),
        "studies": (study_entries, print_studies),
        "plugins": (plugin_entries, print_plugins),
    }
    if what not in kinds:
        raise unknown_name("list", what, kinds)
    entries, show = kinds[what]
    found = _named(entries(), names or [])
    if as_json:
        typer.echo(json.dumps(found, ensure_ascii=False))
    else:
        show(found)
    return 0


def _named(entries: list[dict[str, Any]], names: list[str]) -> list[dict[str, Any]]:
    """Those that are asked for, in their own order."""
    known = [entry["name"] for entry in entries]
    for name in names:
        if name not in known:
            raise unknown_name("name", name, known)
    return [entry for entry in entries if not names or entry["name"] in names]


def metric_entries() -> list[dict[str, Any]]:
    """Every registered metric with what it declares."""
    from unsmooth.functional import METRICS

    return [
        {
            "name": metric.name,
            "definition": metric.definition,
            "options": {name: option.default for name, option in metric.options.items()},
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


def recipe_entries() -> list[dict[str, Any]]:
    """Every recipe with its sizes in numbers."""
    from unsmooth.training import RECIPES

    entries = []
    for name, make in RECIPES.items():
        config = make("base")
        length = f"{config.epochs:g} epochs" if config.epochs is not None else f"{config.steps:,} steps"
        entries.append(
            {
                "name": name,
                "what": (make.__doc__ or "").strip().splitlines()[0],
                "depth": config.network.depth,
                "dim": config.network.dim,
                "norm": config.network.norm,
                "batch": config.batch,
                "length": length,
                "data": config.data.name,
            }
        )
    return entries


def claim_entries() -> list[dict[str, Any]]:
    """Every claim with its rule, in the order of the ledger."""
    from unsmooth.evidence.claim import in_order

    return [
        {
            "name": claim.id,
            "number": claim.number,
            "quote": claim.quote,
            "wording": claim.wording,
            "source": str(claim.source),
            "reading": claim.reading,
            **claim.rule,
            "studies": list(claim.studies),
        }
        for claim in in_order()
    ]


def study_entries() -> list[dict[str, Any]]:
    """Every training study, with the claims that draw on it."""
    from unsmooth.evidence import CLAIMS, STUDIES

    return [
        {
            "name": study.name,
            "what": study.about,
            "claims": [claim.id for claim in CLAIMS.values() if study.name in claim.studies],
        }
        for study in STUDIES.values()
    ]


def model_entries() -> list[dict[str, Any]]:
    """Every architecture that the census asked about, with what holds for it, then families that it does not name."""
    from unsmooth.models import HOSTS

    known = json.loads(files("unsmooth.models").joinpath("census.json").read_text(encoding="utf-8"))["rows"]
    names = {entry["name"] for entry in known}
    declared = [
        {"name": host.name, "class": ", ".join(host.blocks), "scan": "declared", "why": f"such as {host.example}"}
        for host in HOSTS.values()
        if host.name not in names
    ]
    return [*known, *declared]


def remedy_entries() -> list[dict[str, Any]]:
    """Every remedy, ours and other packages', with what it declares."""
    from dataclasses import asdict

    from unsmooth.remedies import describe, names

    return [asdict(describe(name)) for name in names()]


def _paragraph(head: str, lines: list[str], facts: Mapping[str, str]) -> None:
    """A headline, and below it what is there and the facts by name, all but the headline escaped."""
    console = Console()
    console.print(head)
    body = [*lines, *(f"[dim]{escape(key)}:[/dim] {escape(text)}" for key, text in facts.items())]
    console.print(Padding("\n".join(body), (0, 0, 0, 4)))


def _signature(name: str, options: Mapping[str, Any]) -> str:
    """A name with its defaults, as markup."""
    inside = ", ".join(f"{key}={value!r}" for key, value in options.items())
    return f"[bold]{name}[/bold]" + (f"[dim]({escape(inside)})[/dim]" if inside else "")


def _summary(entry: Mapping[str, Any]) -> list[str]:
    return [escape(entry["summary"]), f"[cyan]{escape(entry['equation'])}[/cyan]"]


def print_remedies(entries: list[dict[str, Any]]) -> None:
    """A paragraph per remedy."""
    for entry in entries:
        neutral = ", ".join(f"{key}={value!r}" for key, value in (entry["neutral"] or {}).items())
        facts = {
            "paper": entry["paper"],
            "does nothing at": neutral or "no setting",
            "in a decoder": _IN_A_DECODER[entry["causal"]],
            "folds": entry["folds"] or "no",
            "cost": entry["cost"],
            **{option["name"]: option["meaning"] for option in entry["options"]},
        }
        options = {option["name"]: option["default"] for option in entry["options"]}
        _paragraph(_signature(entry["name"], options), _summary(entry), facts)


def print_metrics(entries: list[dict[str, Any]]) -> None:
    """A paragraph per metric, those of the default scan first: names must stay whole to be copied."""
    for entry in sorted(entries, key=lambda entry: not entry["default"]):
        remarks = [READS[entry["reads"]], escape(entry["cost"]), *["in the default scan"] * entry["default"]]
        head = f"{_signature(entry['name'], entry['options'])}  [dim]{' · '.join(remarks)}[/dim]"
        _paragraph(head, [escape(entry["definition"]), f"[dim]chance: {escape(entry['chance'])}[/dim]"], {})


def print_models(entries: list[dict[str, Any]]) -> None:
    """One row per architecture: what holds, what was refused and why."""
    table = Table(box=None)
    columns = ("name", "scan", "sites", "weights", "explain", "sharpen", "deescalate", "layerscale", "why")
    for column in columns:
        table.add_column(column, no_wrap=column == "name", overflow="fold")
    for entry in entries:
        table.add_row(*(escape(str(entry.get(column, ""))) for column in columns))
    Console().print(table)


def print_recipes(entries: list[dict[str, Any]]) -> None:
    """A paragraph each."""
    for entry in entries:
        say(f"{entry['name']}: {entry['what']}")
        facts = f"{entry['depth']} blocks, d {entry['dim']}, {entry['norm']}-norm, batch {entry['batch']:,}"
        typer.echo(f"    {facts}, {entry['length']}, data: {entry['data']}; unsmooth train {entry['name']} --size tiny")


def print_claims(entries: list[dict[str, Any]]) -> None:
    """A paragraph each."""
    for entry in entries:
        say(f"{entry['name']}: {entry['quote']}")
        on = f"; draws on {', '.join(entry['studies'])}" if entry["studies"] else ""
        typer.echo(f"    {entry['source']}; {entry['wording']}{on}; unsmooth evidence run {entry['name']}")


def print_studies(entries: list[dict[str, Any]]) -> None:
    """A paragraph each."""
    for entry in entries:
        say(f"{entry['name']}: {entry['what']}")
        for_ = f"for {', '.join(entry['claims'])}" if entry["claims"] else "for no claim"
        typer.echo(f"    {for_}; unsmooth evidence train {entry['name']}")


def loss_entries() -> list[dict[str, Any]]:
    """Every loss, ours and other packages', with what it declares."""
    from unsmooth.losses import LOSSES

    return [declared.describe() for declared in LOSSES.values()]


def print_losses(entries: list[dict[str, Any]]) -> None:
    """A paragraph each."""
    for entry in entries:
        facts = {
            "paper": entry["paper"],
            "formula": entry["basis"],
            "reads": _LOSS_READS[entry["reads"]],
            "cost": entry["cost"],
            "too little": entry["degenerate"],
            "not known": entry["unknown"] or "nothing that we know of",
        }
        _paragraph(_signature(entry["name"], entry["options"]), _summary(entry), facts)


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


def preset_entries() -> list[dict[str, Any]]:
    """Every preset with all it fixes."""
    from unsmooth.presets import PRESETS

    return [preset.describe() for preset in PRESETS.values()]


def print_presets(entries: list[dict[str, Any]]) -> None:
    """A paragraph each."""
    for entry in entries:
        metric = entry["metrics"][0] + (f" − {entry['minus']}" if entry["minus"] else "")
        facts = {
            "source": entry["source"],
            "metric": f"{metric}, {entry['tokens']} tokens, at {' and '.join(entry['sites'])}",
            "average": entry["aggregation"],
            "not known": "; ".join(entry["unknown"]) or "nothing that we know of",
        }
        head = f"[bold]{entry['name']}[/bold]  [dim]{escape(entry['quantity'])} · {escape(entry['basis'])}[/dim]"
        _paragraph(head, [escape(entry["summary"])], facts)
