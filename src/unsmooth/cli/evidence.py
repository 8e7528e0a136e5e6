"""``unsmooth evidence``: the papers' claims, what they rest on, and how to measure them again."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unsmooth.cli.console import say
from unsmooth.cli.groups import grouped
from unsmooth.cli.options import ALONE, Debug, Working
from unsmooth.errors import UnsmoothError, expected
from unsmooth.files import check_writable
from unsmooth.stopping import ended_as_interrupted

if TYPE_CHECKING:
    from unsmooth.evidence import Bench, Claim, Entry, Specimen

evidence = typer.Typer(
    help="The papers' claims with their verdicts: print them, measure them again, write them as a page.",
    invoke_without_command=True,
    add_completion=False,
)

Results = Annotated[
    Path | None,
    typer.Option(
        "--results", metavar="DIR", help="Folder of results; default evidence/ here, else the published ones."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
ScaleOption = Annotated[
    str,
    typer.Option(
        "--scale", metavar="tiny|small|full", help="tiny: seconds; small: minutes; full: what verdicts rest on."
    ),
]
Out = Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder of results.")]
Runs = Annotated[Path, typer.Option("--runs", metavar="DIR", help="Folder of training runs; they are large.")]
Device = Annotated[str, typer.Option("--device", help="Such as cuda or cpu; auto takes a GPU where there is one.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print no progress and no results.")]


@evidence.callback()
def show_ledger(context: typer.Context, results: Results = None, as_json: Json = False, debug: Debug = False) -> int:
    """The ledger: every claim with its verdict, how large the effect is, and how sure."""
    context.obj = results
    if context.invoked_subcommand is not None:
        return 0
    from unsmooth.cli.evidence_tables import print_ledger

    entries = _entries(results)
    if as_json:
        typer.echo(json.dumps([entry.to_json() for entry in entries], ensure_ascii=False, allow_nan=False))
    else:
        print_ledger(entries)
    return 0


@evidence.command()
def show(
    context: typer.Context,
    claim: Annotated[str, typer.Argument(metavar="CLAIM", help="One of `unsmooth ls claims`.")],
    results: Results = None,
    as_json: Json = False,
    debug: Debug = False,
) -> int:
    """One claim: sentence, source, how it is read, rule, findings with intervals, and what made them."""
    from unsmooth.cli.evidence_tables import print_claim
    from unsmooth.evidence import CLAIMS

    wanted = CLAIMS[claim]
    entry = next(one for one in _entries(results or context.obj) if one.claim is wanted)
    if as_json:
        typer.echo(json.dumps(entry.to_json(), ensure_ascii=False, allow_nan=False))
    else:
        print_claim(entry)
    return 0


@evidence.command("run")
@grouped
def run_claims(
    claim: Annotated[str, typer.Argument(metavar="CLAIM|all", help="One of `unsmooth ls claims`, or all of them.")],
    scale: ScaleOption = "tiny",
    out: Out = Path("evidence"),
    runs: Runs = Path("runs/evidence"),
    device: Device = "auto",
    working: Working = ALONE,
    models: Annotated[
        list[str] | None,
        typer.Option(
            "--model", metavar="NAME", help="Also look at this trained model, on a page of text; may be repeated."
        ),
    ] = None,
    quiet: Quiet = False,
    debug: Debug = False,
) -> int:
    """Measure claims again and print what was found; at scale tiny unless told otherwise."""
    from unsmooth.evidence import CLAIMS
    from unsmooth.evidence.claim import in_order

    every = [one for one in in_order() if not one.waits_for]
    chosen = every if claim == "all" else [CLAIMS[claim]]
    bench = _bench(scale, out, runs, device, working, quiet, models or ())
    codes = [_run_one(one, bench, quiet) for one in chosen]
    return max(codes, key=_WORST.index)


@evidence.command()
@grouped
def train(
    study: Annotated[str, typer.Argument(metavar="STUDY", help="One of `unsmooth ls studies`.")],
    scale: ScaleOption = "tiny",
    seeds: Annotated[list[int] | None, typer.Option("--seed", help="This one alone; may be repeated.")] = None,
    variants: Annotated[
        list[str] | None, typer.Option("--variant", metavar="NAME", help="This one alone; may be repeated.")
    ] = None,
    working: Working = ALONE,
    out: Out = Path("evidence"),
    runs: Runs = Path("runs/evidence"),
    device: Device = "auto",
    look_later: Annotated[
        bool, typer.Option("--look-later", help="Train alone; leave what is measured on trained models for later.")
    ] = False,
    look_only: Annotated[
        bool, typer.Option("--look-only", help="Train nothing; measure the trained models that are there once more.")
    ] = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> int:
    """Train the runs of a study, in pieces where --total-budget is short; at scale tiny unless told otherwise."""
    from unsmooth.cli.app import EXIT_NOT_FINISHED
    from unsmooth.cli.evidence_tables import print_runs
    from unsmooth.cli.train_progress import shown_progress
    from unsmooth.evidence import STUDIES, NotFinishedError, carry_out_study
    from unsmooth.evidence.run import look_again

    wanted = STUDIES[study]
    bench = _bench(scale, out, runs, device, working, quiet)
    code = 0
    try:
        with ended_as_interrupted(), shown_progress(quiet=quiet) as tell:
            told = replace(bench, tell=tell)
            if look_only:
                look_again(wanted, told)
            else:
                chosen = (seeds or None, variants or None)
                carry_out_study(wanted, told, seeds=chosen[0], variants=chosen[1], look=not look_later)
    except NotFinishedError as error:
        say(f"unsmooth: {error}", err=True)
        code = EXIT_NOT_FINISHED
    if not quiet:
        print_runs(study, bench)
    return code


@evidence.command()
def studies(context: typer.Context, results: Results = None, as_json: Json = False, debug: Debug = False) -> int:
    """The training studies that claims draw on, with how many runs of each are there."""
    from unsmooth.cli.evidence_tables import print_studies, study_lines

    lines = study_lines(_folder(results or context.obj))
    if as_json:
        typer.echo(json.dumps(lines, ensure_ascii=False))
    else:
        print_studies(lines)
    return 0


@evidence.command()
def page(
    context: typer.Context,
    results: Results = None,
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="Where to write the page.")] = Path(
        "evidence.html"
    ),
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing.")] = False,
    debug: Debug = False,
) -> int:
    """Write all claims as one page that opens without a network."""
    from unsmooth.evidence import Store
    from unsmooth.report.evidence import write_evidence_report

    where = out / "evidence.html" if out.is_dir() else out
    if where.suffix.lower() not in (".html", ".htm"):
        raise expected("--out with a name that ends in .html, or a folder", repr(str(out)), f"--out {out}.html")
    check_writable(where.parent)
    folder = _folder(results or context.obj)
    write_evidence_report(_entries(folder), where, Store(folder))
    if not quiet:
        say(f"{where}: all claims as a page")
    return 0


def _run_one(claim: Claim, bench: Bench, quiet: bool) -> int:
    """Measure a claim; what stops it is told in one line, so that the next one has its turn."""
    from unsmooth.cli.app import EXIT_BAD_INPUT, EXIT_NOT_FINISHED
    from unsmooth.cli.evidence_tables import print_verdict
    from unsmooth.cli.train_progress import shown_progress
    from unsmooth.evidence import Entry, NotFinishedError, run_claim
    from unsmooth.evidence.ledger import gpu_minutes

    try:
        with ended_as_interrupted(), shown_progress(quiet=quiet) as tell:
            record = run_claim(claim, replace(bench, tell=tell))
    except UnsmoothError as error:
        say(f"unsmooth: {claim.id}: {' '.join(str(error).split())}", err=True)
        return EXIT_NOT_FINISHED if isinstance(error, NotFinishedError) else EXIT_BAD_INPUT
    if not quiet:
        minutes = gpu_minutes(claim, record, bench.store)
        print_verdict(Entry(claim, record, claim.judge(record.measured), minutes))
    return 0


_WORST = (0, 3, 2)  # exit codes from the best to the worst: all done, not finished, not to be done as asked


def _bench(
    scale: str, out: Path, runs: Path, device: str, working: Working, quiet: bool, models: Sequence[str] = ()
) -> Bench:
    from unsmooth.evidence import Bench
    from unsmooth.evidence.records import known_scale

    known, crew, deadline = known_scale(scale), working.crew(quiet), working.deadline
    check_writable(out)
    return Bench(
        scale=known,
        out=out,
        runs=runs,
        device=device,
        specimens=[_specimen(name) for name in models],
        crew=crew,
        deadline=deadline,
        announce=None if quiet else partial(say, err=True),
    )


def _specimen(name: str) -> Specimen:
    from unsmooth.cli.options import bundled_page
    from unsmooth.evidence import Specimen
    from unsmooth.models import load

    return Specimen(name=name, load=lambda: load(name), data=bundled_page)


def _entries(results: Path | None) -> list[Entry]:
    from unsmooth.evidence import ledger

    return ledger(_folder(results))


def _folder(results: Path | None) -> Path:
    from unsmooth.evidence.ledger import results_folder

    if results is None:
        return results_folder()
    if not results.is_dir():
        raise expected("a folder of results", repr(str(results)), "one that `unsmooth evidence run --out DIR` wrote")
    return results
