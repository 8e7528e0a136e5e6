"""What ``unsmooth scan`` leaves behind: files, a report, tables, JSON, an exit code."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from unsmooth.cli.before_after import as_one, folders_of, labelled
from unsmooth.cli.console import say
from unsmooth.errors import UnsmoothError, expected

if TYPE_CHECKING:
    from unsmooth.explaining import Explanation
    from unsmooth.scanning import Scan
    from unsmooth.scanning.condition import Condition

WHY = "why"


@dataclass
class Findings:
    """What was found, by model where there are several, else by remedies as they were asked for.

    None is the one model as it is, and comes first.

    Attributes:
        several: Whether more than one was asked for; after Ctrl-C there may be fewer.
        scans: Finished ones, the last one perhaps not.
        whys: Explanations, where they were asked for.
        now: Which is being looked at.
        interrupted: Whether Ctrl-C or SIGTERM ended it.
    """

    several: bool
    scans: dict[str | None, Scan] = field(default_factory=dict)
    whys: dict[str | None, Explanation] = field(default_factory=dict)
    now: str | None = None
    interrupted: bool = False

    @contextmanager
    def until_interrupted(self) -> Iterator[None]:
        """Ctrl-C or SIGTERM ends what is done within; what was found is kept, and with nothing found it goes on."""
        try:
            yield
        except KeyboardInterrupt as stop:
            part = getattr(stop, "scan", None)
            if part is not None:
                self.scans[self.now] = part
            elif not self.scans:
                raise
            self.interrupted = True


def check_parquet(out: Path | None) -> None:
    """Refuse --parquet where no such file could be written, before any work is done for it."""
    from unsmooth.scanning.parquet import import_pyarrow

    if out is None:
        raise expected("a folder for --parquet", "none", "--out DIR beside it")
    import_pyarrow()


def finish(
    found: Findings, conditions: list[Condition], out: Path | None, as_json: bool, quiet: bool, parquet: bool = False
) -> int:
    """Write, print, and tell by the exit code what is wrong."""
    from unsmooth.cli.app import EXIT_FOUND, EXIT_INTERRUPTED

    if out is not None:
        _write(found, out, parquet)
    if as_json:
        typer.echo(json.dumps(_as_json(found), allow_nan=False))
    elif not quiet:
        _print(found, out)
    code = EXIT_FOUND if _tell_conditions(found, conditions) else 0
    unhealthy = [one.notes for one in found.scans.values() if not one.healthy]
    for notes in (*unhealthy, *(why.notes for why in found.whys.values())):
        if broken := " ".join(note for note in notes if note.startswith("NaN")):
            say(f"unsmooth: {broken}", err=True)
            code = EXIT_FOUND
    if found.interrupted:
        where = f"what is done is saved in {out}" if out is not None else "nothing was saved; try --out DIR"
        say(f"unsmooth: Interrupted, {where}.", err=True)
        return EXIT_INTERRUPTED
    return code


def _as_json(found: Findings) -> object:
    """The scan, or an object of several; with --explain each is an object of the scan and the explanation."""
    from unsmooth.explaining.files import to_json as why_to_json
    from unsmooth.scanning.files import to_json

    each: dict[str | None, object] = {which: to_json(one) for which, one in found.scans.items()}
    for which, why in found.whys.items():
        each[which] = {"scan": each[which], "explanation": why_to_json(why)}
    return as_one(each) if found.several else each[None]


def _print(found: Findings, out: Path | None) -> None:
    from unsmooth.cli.explain_tables import print_explanation, print_verdicts
    from unsmooth.cli.tables import print_before_after, print_models, print_scan

    scans = found.scans
    if None not in scans:
        print_models(list(scans.values()), out, last=not found.whys)
    elif len(scans) == 1:
        print_scan(scans[None], out, last=not found.whys)
    else:
        after = {which: one for which, one in scans.items() if which is not None}
        print_before_after(scans[None], after, out, last=not found.whys)
    if len(found.whys) > 1 or (found.whys and None not in found.whys):
        print_verdicts(labelled(found.whys), out)
    elif found.whys:
        print_explanation(found.whys[None], out)


def _tell_conditions(found: Findings, conditions: list[Condition]) -> bool:
    """Whether a condition holds: of the model with remedies, where there are any."""
    from unsmooth.numbers import spoken

    judged = {which: one for which, one in found.scans.items() if which is not None or len(found.scans) == 1}
    word = "with" if None in found.scans else "for"
    holding = False
    for condition in conditions:
        for which, one in judged.items():
            row = condition.holds(one)
            if row is not None:
                of = "" if which is None else f" {word} {which}"
                at = f"layer {row.layer}" + (f" of the {row.stack}" if row.stack else "")
                value = spoken(row.mean) if math.isfinite(row.mean) else row.mean
                typer.echo(f"unsmooth: {condition} holds{of}: {value} at {at}.", err=True)
                holding = True
    return holding


def _write(found: Findings, out: Path, parquet: bool) -> None:
    """One scan into the folder itself; several each into its own, with one report of all."""
    folders = folders_of(found.scans, out, found.several)
    for which, one in found.scans.items():
        one.save(folders[which], parquet=parquet)
    for which, why in found.whys.items():
        why.save(folders[which] / WHY)
    scans = list(found.scans.values())
    try:
        from unsmooth.report import save_figures, write_report

        write_report(scans, out / "report.html", explanations=list(found.whys.values()))
        # Dozens of figures of every explanation would take longer than all else: `unsmooth explain` writes them.
        save_figures(scans, out / "figures")
    except UnsmoothError as error:
        # The numbers are safe; a missing chart library is no reason to lose them.
        say(f"unsmooth: no report: {error}", err=True)
