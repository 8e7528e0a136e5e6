"""``unsmooth presets [MODEL] [DATA]``: one model by every published definition that fits, in one forward pass."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from unsmooth.cli.console import Console
from unsmooth.cli.groups import grouped
from unsmooth.cli.options import ALL_OF_IT, AS_STORED, Debug, Loading, Out, Quiet, Showing, Words, bundled_page
from unsmooth.cli.words import read_words
from unsmooth.errors import expected
from unsmooth.files import check_writable, write_whole
from unsmooth.spec import split_at_commas

if TYPE_CHECKING:
    from pathlib import Path

    from unsmooth.scanning import Definitions


@grouped
def presets(
    words: Words = None,
    only: Annotated[str | None, typer.Option(help="Names separated by commas; default all that fit.")] = None,
    out: Out = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    quiet: Quiet = False,
    showing: Showing = ALL_OF_IT,
    loading: Loading = AS_STORED,
    debug: Debug = False,
) -> int:
    """Show how far the curve of one MODEL moves between published definitions, on DATA; by default of demo:plain."""
    from unsmooth.scanning import compare_presets

    asked = read_words(words or ["demo:plain"])
    if len(asked.models) > 1:
        raise expected("one model", f"{len(asked.models)} models", "one at a time")
    if out is not None:
        check_writable(out)
    [word], how = asked.models, showing.arguments()
    model = loading.open(word)
    found = compare_presets(
        model,
        asked.shown_to(word, model, bundled_page()),
        presets=None if only is None else split_at_commas(only),
        progress=not quiet,
        **how,
    )
    if out is not None:
        _write(found, out)
    if as_json:
        typer.echo(json.dumps(_as_json(found), ensure_ascii=False, allow_nan=False))
    elif not quiet:
        _print(found, out)
    return 0


def _write(found: Definitions, out: Path) -> None:
    """Every scan into its own folder, all numbers as one csv, and the plate."""
    for name, scan in found.scans.items():
        scan.save(out / "scans" / name)
    write_whole(out / "definitions.csv", found.to_frame().to_csv(index=False).encode())
    from unsmooth.report.plates import definitions_plate, write_plate

    write_plate(definitions_plate(found), out)


def _as_json(found: Definitions) -> dict[str, object]:
    from dataclasses import asdict

    last = {name: found.curve(name)[-1] for name in found.scans}
    return {
        "model": found.name,
        "sentence": found.sentence,
        "last": {name: {"layer": row.layer, "mean": row.mean} for name, row in last.items()},
        "gaps": [asdict(gap) for gap in found.gaps],
        "left_out": dict(found.left_out),
    }


def _print(found: Definitions, out: Path | None) -> None:
    from unsmooth.report.plates import definitions_plate

    console, plate = Console(), definitions_plate(found)
    for numbers in plate.tables:
        table = Table(title=numbers.title, title_justify="left")
        for head in numbers.heads:
            table.add_column(escape(head), overflow="fold")
        for line in numbers.lines:
            table.add_row(*map(escape, line))
        console.print(table)
    for note in plate.notes:
        console.print(f"[yellow]note:[/yellow] {escape(note)}", soft_wrap=True)
    console.print(f"[bold]{escape(found.sentence)}[/bold]", soft_wrap=True)
    if out is None:
        console.print("Add --out DIR for the figure, its numbers and a page.", style="dim")
    else:
        console.print(f"page: {escape(str(out / 'presets.html'))}", soft_wrap=True)
