"""``unsmooth arena RECIPE --remedies …``: every remedy on the same recipe at the same budget, in one table and page."""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unsmooth.cli.console import say
from unsmooth.cli.groups import grouped
from unsmooth.cli.options import ALONE, Debug, Working
from unsmooth.errors import UnsmoothError, expected

if TYPE_CHECKING:
    from unsmooth.arena import ArenaFolder, Plan, Standings


_SPARE = ("memory", "step time", "cosine, start → end", "rate")
"""Columns that a narrow terminal does without, those that are missed least first."""


@grouped
def arena(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="One of `unsmooth ls recipes`.")],
    remedies: Annotated[
        list[str],
        typer.Option(
            metavar="A,B,…", help='Such as deescalate,"sharpen(basis=orthogonal)"; the plain model always takes part.'
        ),
    ],
    seeds: Annotated[int, typer.Option(help="How many scored runs of each.")] = 3,
    budget: Annotated[
        str | None,
        typer.Option(
            metavar="5m|2000steps",
            help="Steps of every run: so many, or as many as a plain run makes in this time. Default as the recipe.",
        ),
    ] = None,
    rates: Annotated[
        str | None,
        typer.Option(metavar="A,B,…", help="Learning rates to choose from; default a third of the recipe's to thrice."),
    ] = None,
    widen: Annotated[
        int, typer.Option(help="So many more are tried, one by one, beyond an end of these where the best lies there.")
    ] = 2,
    grid: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=A,B", help="Several models, such as depth=12,24; may be repeated: all combinations."),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Any setting of the recipe; may be repeated."),
    ] = None,
    size: Annotated[str, typer.Option(help="base as published, tiny for a minute on two CPU cores.")] = "base",
    data: Annotated[str | None, typer.Option(metavar="PATH", help="Data; default data/NAME, else synthetic.")] = None,
    score: Annotated[
        str | None, typer.Option(help="Metric to compare; default the first that is not the loss.")
    ] = None,
    probe: Annotated[float, typer.Option(help="Length of runs that choose a rate, as a share of the budget.")] = 1.0,
    hold_out: Annotated[
        float,
        typer.Option(
            help="Share of the training samples that these runs do not learn from and are evaluated on; "
            "0 chooses rates on the test set."
        ),
    ] = 0.1,
    working: Working = ALONE,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder of results; default runs/arena/RECIPE.")
    ] = None,
    runs: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder of training runs, which are large; default in --out."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON instead of a table.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print no progress and no table.")] = False,
    debug: Debug = False,
) -> int:
    """Compare remedies at equal budget: score, token similarity, step time, memory and failures of each.

    What is done is never done again: stop it whenever you like, and give the same command to go on.
    """
    from unsmooth.arena import ArenaFolder, Budget, carry_out_arena, plan_arena, standings
    from unsmooth.arena.plan import check_options, check_possible
    from unsmooth.arena.results import OtherResultsError
    from unsmooth.cli.train import changes_of, config_of
    from unsmooth.cli.train_progress import shown_progress
    from unsmooth.executing import HeldError
    from unsmooth.spec import read_settings, split_at_commas
    from unsmooth.stopping import ended_as_interrupted

    changes = changes_of(settings or [], data=data)
    for name in read_settings(grid or [], "--grid KEY=VALUE,VALUE", "--grid depth=12,24"):
        if name in changes:
            raise expected(f"{name} by --set or by --grid, one of the two", "both", f"--grid {name}=… for all of them")
    plan = plan_arena(
        config_of(recipe, size, changes),
        [one for text in remedies for one in split_at_commas(text)],
        grid=grid or [],
        rates=_rates(rates),
        seeds=seeds,
        budget=None if budget is None else Budget.read(budget),
        score=score,
        probe=probe,
        hold_out=hold_out,
        widen=widen,
    )
    crew, deadline = working.crew(quiet or as_json), working.deadline
    check_options(plan)
    check_possible(plan)
    folder = ArenaFolder(out or Path("runs/arena") / recipe, runs)
    folder.check_writable()
    call, before = secrets.token_hex(8), folder.written()
    try:
        with ended_as_interrupted(), shown_progress(quiet=quiet or as_json) as tell:
            announce = str if quiet or as_json else partial(say, err=True)
            carry_out_arena(plan, folder, crew=crew, deadline=deadline, tell=tell, announce=announce, call=call)
    except BaseException as error:
        folder.forget_unbegun()
        # What was refused, or stopped before its first result, leaves what is told of earlier ones as it is.
        if not isinstance(error, OtherResultsError | HeldError) and folder.written() != before:
            standings(plan, folder).write(folder)
        if isinstance(error, KeyboardInterrupt):
            typer.echo("unsmooth: interrupted. The same command goes on from there.", err=True)
        raise
    found = standings(plan, folder)
    found.write(folder)
    _tell(found, folder, as_json, quiet)
    return _code(plan, folder, call)


def _rates(text: str | None) -> tuple[float, ...]:
    if text is None:
        return ()
    try:
        found = tuple(float(part) for part in text.split(",") if part.strip())
    except ValueError:
        found = ()
    if not found:
        raise expected("learning rates with commas between them", repr(text), "--rates 1e-4,3e-4,1e-3")
    return found


def _tell(found: Standings, folder: ArenaFolder, as_json: bool, quiet: bool) -> None:
    from unsmooth.report.arena import write_arena_report

    page = None
    try:
        page = write_arena_report(found, folder.path)
    except UnsmoothError as error:
        say(f"unsmooth: no page was written: {error}", err=True)
    if as_json:
        typer.echo(json.dumps({**found.to_json(), "page": page and str(page)}, ensure_ascii=False, allow_nan=False))
    elif not quiet:
        _print(found, page)
        if others := folder.unnamed(found.plan):
            told = f"{folder.path} also has results of {_listed(others)}. Name all of them for one table."
            say(f"unsmooth: {told}", err=True)


def _listed(places: list[str]) -> str:
    return ", ".join(places[:3]) + (f" and {len(places) - 3} more" if len(places) > 3 else "")


def _print(found: Standings, page: Path | None) -> None:
    from rich.markup import escape
    from rich.table import Table

    from unsmooth.cli.console import Console
    from unsmooth.report.arena import cells_of, failures_of, findings_of, heads_of, notes_of, sentence_of

    console = Console()
    table = Table(box=None)
    heads, rows = heads_of(found), [cells_of(found, line) for line in found.lines]
    shown = fitting(heads, rows, console.width, _SPARE)
    for place, width in shown.items():
        table.add_column(escape(heads[place]), justify="right" if place else "left", overflow="fold", width=width)
    for row in rows:
        table.add_row(*(escape(row[place]) for place in shown))
    console.print(table)
    if left_out := [head for place, head in enumerate(heads) if place not in shown]:
        told = f"Not in this width: {', '.join(left_out)}. The page and --json have all."
        console.print(f"[dim]{escape(told)}[/dim]", soft_wrap=True, highlight=False)
    for failure in failures_of(found):
        console.print(f"[yellow]note:[/yellow] {escape(failure)}", soft_wrap=True, highlight=False)
    for note in notes_of(found):
        console.print(f"[dim]{escape(note)}[/dim]", soft_wrap=True, highlight=False)
    for finding in findings_of(found):
        console.print(escape(finding), soft_wrap=True, highlight=False)
    console.print(f"[bold]{escape(sentence_of(found))}[/bold]", soft_wrap=True)
    if page is not None:
        console.print(f"page: {escape(str(page))}", soft_wrap=True)


def _code(plan: Plan, folder: ArenaFolder, call: str) -> int:
    """0 where everything came to an outcome, refusals and lost numbers included."""
    from unsmooth.arena.results import left_over
    from unsmooth.cli.app import EXIT_BAD_INPUT, EXIT_NOT_FINISHED

    if left := left_over(plan, folder, call):
        named = _listed([one.place for one in left])
        say(f"unsmooth: {named} not done yet. The same command goes on from there.", err=True)
        return EXIT_NOT_FINISHED
    failed = [one for one in plan.entrants if (folder.trouble(one) or {}).get("state") == "failed"]
    if failed:
        named = ", ".join(one.place for one in failed)
        say(f"unsmooth: {named} failed, as the table says. The same command tries again.", err=True)
        return EXIT_BAD_INPUT
    return 0


# What rich puts to the left and the right of a cell.
_PADDING = 2


def fitting(heads: Sequence[str], rows: Sequence[Sequence[str]], width: int, spare: Sequence[str]) -> dict[int, int]:
    """Columns that fit a terminal, by place, with the width of each: no word of a cell is broken.

    Args:
        heads: Of all columns.
        rows: Their cells.
        width: Of the terminal.
        spare: Heads of columns that may be left out, those that are missed least first.

    Example:
        >>> fitting(["remedy", "verdict", "memory"], [["sharpen", "no difference shown", "12 MiB"]], 26, ["memory"])
        {0: 7, 1: 15}
        >>> fitting(["remedy", "verdict", "memory"], [["sharpen", "no difference shown", "12 MiB"]], 80, ["memory"])
        {0: 7, 1: 19, 2: 6}
    """
    columns = {place: [head, *(row[place] for row in rows)] for place, head in enumerate(heads)}
    least = {place: max(_longest_word(cell) for cell in cells) for place, cells in columns.items()}
    for head in spare:
        if sum(least.values()) + _PADDING * len(least) <= width:
            break
        least.pop(heads.index(head), None)
    left = width - sum(least.values()) - _PADDING * len(least)
    widths = {}
    for place, narrow in least.items():
        more = max(0, min(left, max(map(len, columns[place])) - narrow))
        widths[place] = narrow + more
        left -= more
    return widths


def _longest_word(text: str) -> int:
    return max(map(len, text.split()), default=0)
