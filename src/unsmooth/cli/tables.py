"""Tables for the terminal."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.markup import escape
from rich.table import Table

from unsmooth.cli.console import Console
from unsmooth.numbers import Precision
from unsmooth.scanning.result import Confound, Row, Scan


def print_scan(scan: Scan, out: Path | None, last: bool = True) -> None:
    """The table by layer, what stands out, the notes and the sentence; where it is the last thing, also the report."""
    console = Console()
    for part in scan.parts[:-1]:
        _print_part(console, part)
        print_ending(console, part.notes, part.sentence, out, last=False)
        console.print()
    _print_part(console, scan.parts[-1])
    print_ending(console, scan.parts[-1].notes, scan.parts[-1].sentence, out, last)


def _print_part(console: Console, scan: Scan) -> None:
    """The tables of one stack by layer, and what stands out in it."""
    wide = True
    for site, definition in scan.sites.items():
        title = f"{escape(scan.name)} — {site}: {definition}"
        table = Table(title=title, title_justify="left", caption_justify="left")
        if any(row.stage is not None for row in scan.rows):
            table.add_column("stage", justify="right")
        table.add_column("layer", justify="right")
        here = {row.metric for row in scan.rows if row.site == site}
        metrics = [metric for metric in scan.metrics if metric in here]
        for metric in metrics:
            table.add_column(escape(metric), justify="right", overflow="fold")
        # In a narrow terminal the intervals would break every cell in two; they are in the files and the report.
        wide = console.width >= 12 + 16 * len(scan.metrics)
        _fill(table, scan, site, metrics, wide)
        console.print(table)
    console.print(
        f"{_counts(scan)} ({scan.manifest['definitions']['tokens']}); "
        f"means over sequences{', ± half their 95 % interval' if wide else ''}{_other_units(scan)}.",
        style="dim",
    )
    for line in confound_lines(scan.confounds):
        console.print(escape(line))


def _counts(scan: Scan) -> str:
    """How much was read; of one of several stacks, as much as its rows say."""
    data = scan.manifest["data"]
    if not scan.stack:
        return f"{data['sequences']} sequences, {data['tokens']} tokens"
    return f"{max(row.sequences for row in scan.rows)} sequences, {max(row.tokens for row in scan.rows)} tokens"


def _other_units(scan: Scan) -> str:
    """Metrics whose values are not of sequences."""
    others = [f"{metric}: over {card.unit}s" for metric, card in scan.metrics.items() if card.unit == "word"]
    others += [f"{metric}: one number" for metric, card in scan.metrics.items() if card.unit == "pair of sequences"]
    return f" ({escape('; '.join(others))})" if others else ""


def print_ending(console: Console, notes: Sequence[str], sentence: str, out: Path | None, last: bool = True) -> None:
    """Notes, the sentence, and where it is the last thing, where the report is."""
    for note in notes:
        console.print(f"[yellow]note:[/yellow] {escape(note)}")
    console.print()
    console.print(f"[bold]{escape(sentence)}[/bold]", soft_wrap=True)
    if last:
        print_where(console, out)


def print_where(console: Console, out: Path | None) -> None:
    """Where the report is, or how to have one."""
    if out is None:
        console.print("Add --out DIR for files, figures and an HTML report.", style="dim")
    elif (out / "report.html").exists():
        console.print(f"report: {escape(str(out / 'report.html'))}", soft_wrap=True)
    else:
        console.print(f"saved in {escape(str(out))}", soft_wrap=True)


def _fill(table: Table, scan: Scan, site: str, metrics: Sequence[str], wide: bool) -> None:
    cells = {(row.layer, row.metric): row for row in scan.rows if row.site == site}
    stages = {row.layer: row.stage for row in cells.values()}
    staged = any(stage is not None for stage in stages.values())
    before = [""] if staged else []
    says = {metric: Precision.of(row.mean for row in cells.values() if row.metric == metric) for metric in metrics}
    for layer in sorted(stages):
        stage = [str(stages[layer])] if staged else []
        numbers = (_cell(cells.get((layer, metric)), says[metric], wide) for metric in metrics)
        table.add_row(*stage, str(layer), *numbers)
    chances = [scan.metrics[metric].chance for metric in metrics]
    if any(chance is not None for chance in chances):
        table.add_section()
        numbers = (
            "" if chance is None else says[metric](chance) for metric, chance in zip(metrics, chances, strict=True)
        )
        table.add_row(*before, "chance", *numbers, style="dim")
    if scan.baseline is not None:
        last = scan.baseline.layers[-1]
        random = {row.metric: row for row in scan.baseline.rows if row.site == site and row.layer == last}
        numbers = (_cell(random.get(metric), says[metric], wide) for metric in metrics)
        table.add_row(*before, f"random {last}", *numbers, style="dim")


def _cell(row: Row | None, say: Precision, with_interval: bool = True) -> str:
    if row is None or math.isnan(row.mean):
        return "–"
    half = (row.ci_high - row.ci_low) / 2
    return say(row.mean) + (f" ±{say(half)}" if with_interval and not math.isnan(half) else "")


def confound_lines(confounds: Sequence[Confound]) -> list[str]:
    """Name what stands out, and what the last layer's mean cosine is without it."""
    if not confounds:
        return []
    tokens = _layers(confounds, "massive_tokens")
    dimensions = _layers(confounds, "outlier_dimensions")
    if not tokens and not dimensions:
        return ["No massive tokens and no outlier dimensions."]
    worst = max(confounds, key=lambda item: abs(item.mean_cosine - item.without_both))
    lines = []
    if tokens:
        where = max(tokens, key=lambda item: item.massive_tokens[0].share)
        names = ", ".join(
            f"position {token.position}" if token.text is None else repr(token.text) for token in where.massive_tokens
        )
        lines.append(f"Massive tokens at layers {_span(tokens)}, such as {names} at layer {where.layer}.")
    if dimensions:
        where = max(dimensions, key=lambda item: item.outlier_dimensions[0].share)
        names = ", ".join(str(entry.dimension) for entry in where.outlier_dimensions)
        lines.append(f"Outlier dimensions at layers {_span(dimensions)}, such as {names} at layer {where.layer}.")
    say = Precision()
    lines.append(
        f"They matter most at layer {worst.layer}: mean cosine {say(worst.mean_cosine)} with them, "
        f"{say(worst.without_massive_tokens)} without the tokens, {say(worst.without_outlier_dimensions)} without the "
        f"dimensions, {say(worst.without_both)} without both."
    )
    return lines


def _layers(confounds: Sequence[Confound], kind: str) -> list[Confound]:
    return [confound for confound in confounds if getattr(confound, kind)]


def _span(confounds: Sequence[Confound]) -> str:
    first, last = confounds[0].layer, confounds[-1].layer
    return str(first) if first == last else f"{first} to {last}"


def print_comparison(scans: Sequence[Scan], metric: str, site: str, out: Path | None) -> None:
    """One column per scan, and under each how it changes with depth."""
    console = Console()
    console.print(_comparison(scans, metric, site))
    console.print(escape(scans[0].metrics[metric].definition), style="dim")
    for scan in scans:
        console.print(f"[bold]{escape(scan.name)}[/bold]: {escape(scan.sentence)}", soft_wrap=True)
    if out is not None:
        console.print(f"report: {out / 'report.html'}", soft_wrap=True)


def print_models(scans: Sequence[Scan], out: Path | None, last: bool = True) -> None:
    """The curves of the first metric of several models at every site, what each says, and notes."""
    console = Console()
    metric = next(iter(scans[0].metrics))
    parts = [part for scan in scans for part in scan.parts]
    for site in scans[0].sites:
        console.print(_comparison(parts, metric, site))
    console.print(escape(scans[0].metrics[metric].definition), style="dim")
    for scan in scans:
        for note in scan.notes:
            console.print(f"[yellow]note[/yellow] ({escape(scan.name)}): {escape(note)}", soft_wrap=True)
        console.print(f"[bold]{escape(scan.name)}[/bold]: {escape(scan.sentence)}", soft_wrap=True)
    if last:
        print_where(console, out)


def _comparison(scans: Sequence[Scan], metric: str, site: str) -> Table:
    table = Table(title=f"{escape(metric)} — {site}", title_justify="left")
    table.add_column("layer", justify="right")
    for scan in scans:
        table.add_column(escape(scan.name), justify="right", overflow="fold")
    # A stack may lack what another one has, such as cross-attention.
    curves = [{row.layer: row for row in scan.rows if (row.metric, row.site) == (metric, site)} for scan in scans]
    say = Precision.of(row.mean for curve in curves for row in curve.values())
    for layer in sorted({layer for curve in curves for layer in curve}):
        table.add_row(str(layer), *(_cell(curve[layer], say) if layer in curve else "" for curve in curves))
    changes = [scan.changes.get(metric) for scan in scans]
    if site == "residual" and any(changes):
        table.add_section()
        numbers = ("" if change is None else say(change.mean, signed=True) for change in changes)
        table.add_row("change", *numbers, style="bold")
    return table


def print_before_after(before: Scan, after: Mapping[str, Scan], out: Path | None, last: bool = True) -> None:
    """The curves of the first metric without and with remedies, every metric at the last layer, and what each says."""
    console = Console()
    metric = next(iter(before.metrics))
    for site in before.sites:
        table = _before_after_table(f"{escape(metric)} — {site}, {escape(before.name)}", "layer", after)
        curves = [{row.layer: row.mean for row in scan.curve(metric, site)} for scan in (before, *after.values())]
        say = Precision.of(value for curve in curves for value in curve.values())
        for layer in sorted(curves[0]):
            table.add_row(str(layer), *_with_differences([curve.get(layer, math.nan) for curve in curves], say))
        console.print(table)
    _print_last_layers(console, before, after)
    for which, scan in {"before": before, **{f"with {which}": scan for which, scan in after.items()}}.items():
        for note in scan.notes:
            console.print(f"[yellow]note[/yellow] ({escape(which)}): {escape(note)}")
        console.print(f"[bold]{escape(which)}[/bold]: {escape(scan.sentence)}", soft_wrap=True)
    if last:
        print_where(console, out)


def _print_last_layers(console: Console, before: Scan, after: Mapping[str, Scan]) -> None:
    site, last = next(iter(before.sites)), before.layers[-1]
    table = _before_after_table(f"Every metric at layer {last} — {site}", "metric", after)
    for metric in before.metrics:
        ends = [scan.curve(metric, site)[-1].mean for scan in (before, *after.values())]
        table.add_row(escape(metric), *_with_differences(ends, Precision.of(ends)))
    console.print(table)


def _before_after_table(title: str, first: str, after: Mapping[str, Scan]) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column(first, justify="right")
    table.add_column("before", justify="right")
    for which in after:
        table.add_column(f"with {escape(which)}", justify="right", overflow="fold")
        table.add_column("difference", justify="right")
    return table


def _with_differences(values: Sequence[float], say: Precision) -> list[str]:
    """The first number, then each other one with how far it is from the first.

    >>> _with_differences([0.5, 0.25, math.nan], Precision())
    ['0.500', '0.250', '−0.250', '–', '–']
    """
    first, *others = values
    return [say(first), *(cell for other in others for cell in (say(other), say(other - first, signed=True)))]
