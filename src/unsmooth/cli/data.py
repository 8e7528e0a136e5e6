"""``unsmooth data get|ls``: public data sets in the data folder."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from unsmooth.cli.console import Console, say
from unsmooth.cli.options import Debug
from unsmooth.files import read_json

data = typer.Typer(help="Get public data sets, and see which are there.", no_args_is_help=True, add_completion=False)

Folder = Annotated[Path, typer.Option("--out", metavar="DIR", help="The data folder.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


@data.command()
def get(
    name: Annotated[str, typer.Argument(metavar="cifar100|cifar10|superglue|enwik8", help="Which data set.")],
    source: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="SOURCE",
            help="A folder, an archive, or the name of a Hugging Face data set; default the official address.",
        ),
    ] = None,
    out: Folder = Path("data"),
    as_json: Json = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing.")] = False,
    debug: Debug = False,
) -> int:
    """Get a data set, check it, and put it into the data folder: whole, or not at all."""
    from unsmooth.training.data.get import RECORD
    from unsmooth.training.data.get import get as get_data

    with _bar(f"Getting {name}", enabled=not quiet and not as_json) as progress:
        folder = get_data(name, source, out, progress)
    record = read_json(folder / RECORD)
    if as_json:
        typer.echo(json.dumps(record))
    elif not quiet:
        size = sum(file["bytes"] for file in record["files"].values())
        say(f"{folder}: {name} from {record['source']}, {_examples(record['examples'])}, {_size(size)}, checked.")
    return 0


@data.command("ls")
def ls(out: Folder = Path("data"), as_json: Json = False, debug: Debug = False) -> int:
    """List the data sets that are there, each file checked against its digest."""
    from dataclasses import asdict

    from unsmooth.training.data.listing import listed

    found = listed(out)
    if as_json:
        typer.echo(json.dumps([asdict(each) for each in found]))
        return 0

    table = Table(box=None)
    for column in ("name", "state", "size", "examples", "source", "date"):
        table.add_column(column, no_wrap=column in ("name", "state", "size", "date"), overflow="fold")
    for each in found:
        state = each.state if not each.problem else f"{each.state}: {each.problem}"
        size, examples = (_size(each.bytes), _examples(each.examples)) if each.bytes else ("", "")
        source = each.source or f"unsmooth data get {each.name}"
        table.add_row(each.name, state, size, examples, source, each.date)
    Console().print(table)
    return 0


def _examples(counts: Any) -> str:
    """Counts by split, or the number of tasks."""
    if not isinstance(counts, dict):
        return ""
    if all(isinstance(value, int) for value in counts.values()):
        return ", ".join(f"{value:,} {split}" for split, value in counts.items())
    return f"{len(counts)} tasks"


def _size(number: int) -> str:
    return f"{number / 1e6:.1f} MB"


@contextmanager
def _bar(label: str, *, enabled: bool) -> Iterator[Callable[[int, int | None], None] | None]:
    """A bar of bytes, on the error stream; none off the terminal."""
    if not enabled:
        yield None
        return

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(label, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
