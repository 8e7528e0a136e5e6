"""An explanation in the terminal."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path

from rich.box import HEAVY_HEAD, SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from unsmooth.cli.console import Console
from unsmooth.cli.tables import print_ending, print_where
from unsmooth.explaining.result import Explanation, LayerFinding, Skill
from unsmooth.explaining.score import best_tier
from unsmooth.explaining.words import lead, verdicts_hold, verdicts_judged
from unsmooth.numbers import Precision, spoken

_STYLES = {"smoothing": "yellow", "sharpening": "cyan", "preserving": "dim", "undecided": "magenta"}


def print_explanation(explanation: Explanation, out: Path | None) -> None:
    """What foretells the layers best, the layers, how well each tier does, by stack; notes and sentence."""
    console = Console()
    for one in explanation.parts:
        if told := lead(one.skills):
            console.print(f"[bold]{escape(told[0].upper() + told[1:])}.[/bold]")
        console.print(_layers(one))
        if one is explanation.parts[0]:
            console.print(
                "mean, rest: growth of the fastest mode in which all tokens are equal, and of the fastest other one; "
                "margin: log of their ratio; σ: what the norm divides the stream by; foretold, measured: change of "
                "logit t_sim.",
                style="dim",
            )
        if judged := verdicts_judged(one.skills):
            console.print(judged)
        if one.skills:
            console.print(_skills(one.skills))
        else:
            console.print("No tier was scored: that needs data.", style="dim")
        if one.growth is not None:
            console.print(
                f"Through {one.growth.layers} layers: exponent {spoken(one.growth.mean_exponent, 3)} a layer for the "
                f"token mean, {spoken(one.growth.rest_exponent, 3)} for what differs."
            )
    print_ending(console, explanation.notes, explanation.sentence, out)


def print_verdicts(named: Mapping[str, Explanation], out: Path | None) -> None:
    """Verdict, margin and measured change of every layer of several explanations, and what each one says.

    Verdicts that do not hold on a model are not shown; its sentence says what does.
    """
    console = Console()
    named = {
        f"{name} · {part.stack}" if one.stacks else name: part for name, one in named.items() for part in one.parts
    }
    every = [layer for one in named.values() for layer in one.layers]
    measured = any(layer.logit_change is not None for layer in every)
    # In a narrow terminal every verdict would break in two; margins are in the files and the report.
    wide = console.width >= 9 + len(named) * (35 if measured else 24)
    columns: dict[str, Callable[[LayerFinding], str]] = {}
    if wide or not measured:
        of_margins = Precision.of(layer.margin for layer in every)
        columns["margin"] = lambda layer: of_margins(layer.margin, signed=True)
    if measured:
        of_changes = Precision.of(layer.logit_change for layer in every)
        columns["measured" if wide else "change"] = lambda layer: of_changes(layer.logit_change, signed=True)
    table = Table(title="Why, by layer", title_justify="left", box=HEAVY_HEAD if wide else SIMPLE_HEAD)
    table.add_column("layer", justify="right")
    for name in named:
        table.add_column(escape(name), overflow="fold")
        for column in columns:
            table.add_column(column, justify="right")
    for number, layers in enumerate(zip_longest(*(one.layers for one in named.values())), 1):
        cells = []
        for layer, one in zip(layers, named.values(), strict=True):  # None where a model has fewer
            holds = verdicts_hold(one.skills)
            cells += [""] if layer is None else [_verdict(layer) if holds else "–"]
            for column, read in columns.items():
                cells.append("" if layer is None else "–" if column == "margin" and not holds else read(layer))
        table.add_row(str(number), *cells)
    console.print(table)
    meanings = {
        "margin": "margin: log of how much faster the token mean grows than the rest",
        "measured": "measured: change of logit t_sim over the layer",
        "change": "change: of logit t_sim over the layer, as measured",
    }
    console.print("; ".join(meanings[column] for column in columns) + ".", style="dim")
    for name, one in named.items():
        for note in one.notes:
            console.print(f"[yellow]note[/yellow] ({escape(name)}): {escape(note)}")
        said = one.sentence.removeprefix(f"{name}: ")
        console.print(f"[bold]{escape(name)}[/bold]: {escape(said)}", soft_wrap=True)
    print_where(console, out)


def _layers(explanation: Explanation) -> Table:
    """A row per layer; columns that no layer fills are left out, and verdicts where they do not hold."""
    best, hold = best_tier(explanation.skills), verdicts_hold(explanation.skills)
    table = Table(title=f"{escape(explanation.name)} — why, by layer", title_justify="left")
    table.add_column("layer", justify="right")
    if hold:
        table.add_column("verdict")
    shown = [
        (name, read)
        for name, read in _columns(None if best is None else best.name)
        if any(map(_filled(read), explanation.layers)) and (hold or name != "margin")
    ]
    for name, _ in shown:
        table.add_column(escape(name), justify="right", overflow="fold")
    says = [Precision.of(map(read, explanation.layers)) for _, read in shown]
    for one in explanation.layers:
        numbers = (say(read(one)) for (_, read), say in zip(shown, says, strict=True))
        table.add_row(str(one.layer), *([_verdict(one)] if hold else []), *numbers)
    return table


def _verdict(one: LayerFinding) -> str:
    style = _STYLES.get(one.verdict, "")
    return f"[{style}]{one.verdict}[/{style}]" if style else escape(one.verdict)


def _columns(tier: str | None) -> list[tuple[str, Callable[[LayerFinding], float | None]]]:
    columns: list[tuple[str, Callable[[LayerFinding], float | None]]] = [
        ("measured", lambda one: one.logit_change),
        ("margin", lambda one: one.margin),
        ("σ", lambda one: one.scale),
        ("mean", lambda one: one.mean_modulus),
        ("rest", lambda one: one.rest_modulus),
    ]
    if tier is not None:
        columns.insert(0, (f"foretold by {tier}", lambda one: one.predicted.get(tier)))
    gains = {"gain mean": "mean", "gain rest": "rest", "mean→rest": "mean_to_rest", "rest→mean": "rest_to_mean"}
    return columns + [(title, _gain(part)) for title, part in gains.items()]


def _gain(part: str) -> Callable[[LayerFinding], float | None]:
    def read(one: LayerFinding) -> float | None:
        return getattr(one.gains, part, None)

    return read


def _filled(read: Callable[[LayerFinding], float | None]) -> Callable[[LayerFinding], bool]:
    return lambda one: read(one) is not None


def _skills(skills: Sequence[Skill]) -> Table:
    table = Table(title="How well each tier of knowledge foretells these layers", title_justify="left")
    table.add_column("tier")
    table.add_column("knows")
    for name in ("balanced", "accuracy", "explained"):
        table.add_column(name, justify="right")
    for one in skills:
        numbers = map(Precision(2), (one.balanced_accuracy, one.accuracy, one.explained))
        table.add_row(escape(one.name), escape(one.knows), *numbers)
    return table
