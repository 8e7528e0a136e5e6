"""What ``unsmooth evidence`` prints."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.table import Table

from unsmooth.cli.console import Console

if TYPE_CHECKING:
    from unsmooth.evidence import Bench, Entry, Trained

_COLOURS = {
    **dict.fromkeys(("confirmed", "supported here", "for"), "green"),
    **dict.fromkeys(("refuted", "not supported here", "against"), "red"),
    "undecided": "yellow",
    **dict.fromkeys(("not run", "reported"), "dim"),
}


def print_ledger(entries: Sequence[Entry]) -> None:
    """A row for each claim, and how many stand at what."""
    from unsmooth.report.evidence.words import counted, effect, paper, standing

    console = Console()
    table = Table(box=None)
    for heading in ("#", "claim", "wording", "paper", "verdict", "effect [95 %]", "scale"):
        right = heading == "#"
        table.add_column(escape(heading), justify="right" if right else "left", no_wrap=heading in ("claim", "verdict"))
    for section, here in groupby(entries, key=lambda entry: entry.claim.section):
        table.add_row("", f"[bold]{section}[/bold]")
        for entry in here:
            claim, scale = entry.claim, entry.record.scale if entry.record is not None else "–"
            found = (_coloured(standing(entry)), escape(effect(entry)), scale)
            table.add_row(str(claim.number), escape(claim.id), claim.wording, paper(entry), *found)
    console.print(table)
    console.print(counted(entries), highlight=False)
    if any(entry.record is not None and entry.record.scale != "full" for entry in entries):
        console.print("[dim]Scales below full show that a measurement runs, not what holds.[/dim]", soft_wrap=True)


def print_claim(entry: Entry) -> None:
    """Everything about one claim."""
    from unsmooth.report.evidence.words import provenance, said_of

    console = _console()
    claim = entry.claim
    _print_head(console, entry)
    console.print(escape(f"“{claim.quote}”"))
    console.print(f"[dim]{escape(str(claim.source))}; {claim.wording}[/dim]")
    for label, text in said_of(entry):
        console.print(f"[bold]{label.lower()}[/bold] {escape(text)}")
    if entry.record is None:
        console.print(escape(entry.missing or f"Not run yet. Try: unsmooth evidence run {claim.id}"))
        return
    _print_findings(console, entry)
    console.print(
        "[dim]" + escape(", ".join(f"{label.lower()} {text}" for label, text in provenance(entry))) + "[/dim]"
    )


def print_verdict(entry: Entry) -> None:
    """What a measurement came to."""
    console = _console()
    _print_head(console, entry)
    _print_findings(console, entry)


def print_runs(study: str, bench: Bench) -> None:
    """A line for each run of a study that is there."""
    console = _console()
    for run in bench.store.study(study, bench.scale):
        console.print(f"{run.variant}, seed {run.seed}: {_run_in_words(run)}", markup=False)


def study_lines(results: Path) -> list[dict[str, Any]]:
    """Every study with the number of its runs at each scale."""
    from unsmooth.evidence import STUDIES, Store
    from unsmooth.evidence.records import SCALES

    store = Store(results)
    return [
        {"name": one.name, "about": one.about, "runs": {scale: len(store.study(one.name, scale)) for scale in SCALES}}
        for one in STUDIES.values()
    ]


def print_studies(lines: Sequence[dict[str, Any]]) -> None:
    """A row for each."""
    table = Table(box=None, caption="Runs that are there, by scale.", caption_justify="left")
    table.add_column("study", no_wrap=True)
    table.add_column("what")
    for scale in lines[0]["runs"] if lines else ():
        table.add_column(scale, justify="right")
    for line in lines:
        table.add_row(line["name"], line["about"], *map(str, line["runs"].values()))
    Console().print(table)


def _print_head(console: Console, entry: Entry) -> None:
    from unsmooth.report.evidence.words import standing

    console.print(f"[bold]{entry.claim.number} {escape(entry.claim.id)}[/bold] {_coloured(standing(entry))}")


def _print_findings(console: Console, entry: Entry) -> None:
    from unsmooth.report.evidence.words import cautions, in_words

    assert entry.judgement is not None
    for finding in entry.judgement.findings:
        said = _coloured(finding.outcome or "reported")
        console.print(f"  {escape(finding.what)}: {escape(in_words(finding.interval))} {said}")
    console.print(f"[bold]{escape(entry.judgement.words)}[/bold]")
    for caution in cautions(entry):
        console.print(f"[yellow]note:[/yellow] {escape(caution)}")


def _run_in_words(run: Trained) -> str:
    """Accuracy or loss, similarity at the last layer before and after, time."""
    from unsmooth.numbers import Precision
    from unsmooth.report.evidence.studies import last_number
    from unsmooth.report.training.words import duration

    state = str(run.made.get("state"))
    parts = [] if state == "finished" else [f"{state} after {run.made.get('done')} of {run.made.get('steps')} steps"]
    numbers = {name: last_number(run, name) for name in ("accuracy", "loss")}
    parts += [f"{name} {Precision(4)(value)}" for name, value in numbers.items() if value is not None]
    if moments := run.similarity.get("mean_cosine"):
        first, last = (Precision()(moments[place]["layers"][-1]) for place in (0, -1))
        parts.append(f"mean cosine at the last layer {first} → {last}")
    return ", ".join([*parts, duration(run.made.get("seconds"))])


def _coloured(word: str) -> str:
    return f"[{_COLOURS[word]}]{word}[/]"


def _console() -> Console:
    return Console(highlight=False, soft_wrap=True)
