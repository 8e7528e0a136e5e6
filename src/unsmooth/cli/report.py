"""``unsmooth report RUN…``: training runs as one page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from unsmooth.cli.console import Console, say
from unsmooth.cli.options import Debug
from unsmooth.errors import expected
from unsmooth.files import check_writable

if TYPE_CHECKING:
    from unsmooth.training import TrainedRun

_PAGE = "report.html"


def report(
    folders: Annotated[
        list[Path], typer.Argument(metavar="DIR…", help="Runs that train wrote, or folders of runs such as of seeds.")
    ],
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The page; default report.html in DIR, or here for several.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print final numbers as JSON instead of a table.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing.")] = False,
    debug: Debug = False,
) -> int:
    """Draw training runs over one another: losses, metrics, token similarity and spectra over training time."""
    from unsmooth.report.training import write_training_report
    from unsmooth.report.training.table import summary
    from unsmooth.training import find_runs, read_run

    # A run that is named twice is one run.
    places = dict.fromkeys(path.resolve() for folder in folders for path in find_runs(folder))
    page = _page(out, folders)
    check_writable(page.parent)
    runs = [read_run(place) for place in places]
    write_training_report(runs, page)
    for run in runs:
        for note in run.notes:
            say(f"unsmooth: {run.folder.name}: {note}", err=True)
    if as_json:
        typer.echo(json.dumps({"report": str(page), "runs": summary(runs)}, allow_nan=False))
    elif not quiet:
        _print(runs, page)
    return 0


def _page(out: Path | None, folders: list[Path]) -> Path:
    if out is None:
        return folders[0] / _PAGE if len(folders) == 1 else Path(_PAGE)
    if out.is_dir():
        return out / _PAGE
    if out.suffix.lower() not in (".html", ".htm"):
        raise expected("--out with a name that ends in .html, or a folder", repr(str(out)), f"--out {out}.html")
    return out


def _print(runs: list[TrainedRun], page: Path) -> None:
    from unsmooth.report.training.table import brief_table
    from unsmooth.report.training.variants import variants_of
    from unsmooth.report.training.words import banners_of, sentence_of

    console = Console()
    variants = variants_of(runs)
    brief = brief_table(variants)
    table = Table()
    for place, heading in enumerate(brief.headings):
        table.add_column(escape(heading), justify="right" if place else "left", overflow="fold")
    for _, cells in brief.lines:
        table.add_row(*map(escape, cells))
    console.print(table)
    for variant in variants:
        for word, rest in banners_of(variant):
            console.print(f"[yellow]{word}[/yellow] {escape(rest)}")
        console.print(f"[bold]{escape(sentence_of(variant))}[/bold]", soft_wrap=True)
    console.print(f"report: {escape(str(page))}", soft_wrap=True)
