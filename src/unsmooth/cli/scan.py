"""``unsmooth scan MODEL DATA``: measure, print, save, draw."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unsmooth.cli.before_after import BEFORE, Variants, folder_of
from unsmooth.cli.options import (
    DEFAULT_MODEL,
    AllowPickle,
    Blocks,
    Debug,
    Dtype,
    ModelArgument,
    Offline,
    Out,
    Quiet,
    Revision,
    TrustRemoteCode,
    With,
    bundled_page,
)
from unsmooth.cli.ranks import process_group
from unsmooth.errors import UnsmoothError
from unsmooth.files import check_writable

if TYPE_CHECKING:
    from unsmooth.scanning import Scan
    from unsmooth.scanning.condition import Condition

__all__ = ["bundled_page", "scan"]


def scan(
    model: ModelArgument = DEFAULT_MODEL,
    data: Annotated[
        str | None,
        typer.Argument(
            metavar="[DATA]", help="Text file, folder of texts or images, or a text; default a bundled page."
        ),
    ] = None,
    metrics: Annotated[str | None, typer.Option(help="Names separated by commas; default the O(nd) set.")] = None,
    sites: Annotated[str, typer.Option(help="Sites separated by commas, or 'all'.")] = "residual",
    tokens: Annotated[str, typer.Option(help="'content' leaves special tokens out, 'all' does not.")] = "content",
    baseline: Annotated[bool, typer.Option("--baseline", help="Also scan it with random weights.")] = False,
    with_: With = None,
    out: Out = None,
    fail_if: Annotated[
        list[str] | None,
        typer.Option(
            help='Exit 1 if this holds, such as "mean_cosine@last>0.95"; beside --with, of the model with remedies.'
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the scan as JSON instead of a table.")] = False,
    quiet: Quiet = False,
    max_batches: Annotated[int | None, typer.Option(help="Stop after so many batches.")] = None,
    batch_size: Annotated[int, typer.Option(help="Sequences per batch.")] = 16,
    max_length: Annotated[int | None, typer.Option(help="Tokens after which a text is cut.")] = None,
    device: Annotated[
        str | None, typer.Option(help="Such as cuda or cpu; default the first GPU, else the CPU.")
    ] = None,
    dtype: Dtype = None,
    revision: Revision = None,
    offline: Offline = False,
    blocks: Blocks = None,
    name: Annotated[str | None, typer.Option(help="What to call this scan.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the random baseline, and of what remedies draw.")] = 0,
    trust_remote_code: TrustRemoteCode = False,
    allow_pickle: AllowPickle = False,
    debug: Debug = False,
) -> int:
    """Measure how alike the tokens of MODEL are at every layer, on DATA."""
    from unsmooth.models import find_anatomy, load
    from unsmooth.scanning import scan as run_scan
    from unsmooth.scanning.assemble import model_name
    from unsmooth.scanning.condition import Condition

    conditions = [Condition.parse(text) for text in fail_if or ()]
    variants = Variants(with_)
    if out is not None:
        check_writable(out)
    with process_group(device) as (rank, place):
        loaded = load(
            model,
            revision=revision,
            dtype=dtype,
            offline=offline,
            trust_remote_code=trust_remote_code,
            allow_pickle=allow_pickle,
        )
        variants.check(loaded, blocks)
        called = name or model_name(loaded)

        def measure(which: str | None) -> Scan:
            one = loaded if which is None else variants.make(loaded, which, blocks, seed)
            return run_scan(
                one,
                bundled_page() if data is None else data,
                metrics=None if metrics is None else _split(metrics),
                sites=find_anatomy(one, blocks).sites if sites == "all" else tuple(_split(sites)),
                tokens=tokens,  # type: ignore[arg-type]
                max_batches=max_batches,
                device=place,
                progress=not quiet,
                blocks=blocks,
                baseline=baseline,
                batch_size=batch_size,
                max_length=max_length,
                name=called if which is None else f"{called} with {which}",
                seed=seed,
            )

        found, interrupted = _until_interrupted(measure, [None, *variants])
        several = bool(variants)
        return _finish(found, several, conditions, out, as_json, quiet, interrupted) if rank == 0 else 0


# By remedies as they were asked for; None is the model as it is, and comes first.
Found = dict[str | None, "Scan"]


def _until_interrupted(measure: Callable[[str | None], Scan], wanted: list[str | None]) -> tuple[Found, bool]:
    """What is found of each, the model as it is (None) first; and whether Ctrl-C ended it."""
    from unsmooth.scanning import ScanInterrupted

    found: Found = {}
    try:
        for which in wanted:
            found[which] = measure(which)
    except ScanInterrupted as stop:
        if stop.scan is not None:
            found[which] = stop.scan
        elif not found:
            raise
        return found, True
    return found, False


def _finish(
    found: Found,
    several: bool,
    conditions: list[Condition],
    out: Path | None,
    as_json: bool,
    quiet: bool,
    interrupted: bool,
) -> int:
    from unsmooth.cli.app import EXIT_FOUND, EXIT_INTERRUPTED

    if out is not None:
        _write(found, several, out)
    if as_json:
        typer.echo(json.dumps(_as_json(found, several), allow_nan=False))
    elif not quiet:
        _print(found, out)
    code = EXIT_FOUND if _tell_conditions(found, conditions) else 0
    for one in found.values():
        if not one.healthy:
            typer.echo("unsmooth: " + " ".join(note for note in one.notes if note.startswith("NaN")), err=True)
            code = EXIT_FOUND
    if interrupted:
        where = f"what is done is saved in {out}" if out is not None else "nothing was saved; try --out DIR"
        typer.echo(f"unsmooth: Interrupted, {where}.", err=True)
        return EXIT_INTERRUPTED
    return code


def _as_json(found: Found, several: bool) -> object:
    """The scan; beside --with an object of the model as it is and of each remedy's."""
    from unsmooth.scanning.files import to_json

    if not several:
        return to_json(found[None])
    return {BEFORE: to_json(found[None]), "with": {which: to_json(one) for which, one in found.items() if which}}


def _print(found: Found, out: Path | None) -> None:
    from unsmooth.cli.tables import print_before_after, print_scan

    if len(found) == 1:
        print_scan(found[None], out)
    else:
        print_before_after(found[None], {which: one for which, one in found.items() if which is not None}, out)


def _tell_conditions(found: Found, conditions: list[Condition]) -> bool:
    """Whether a condition holds: of the model with remedies, where there are any."""
    judged = {which: one for which, one in found.items() if which is not None or len(found) == 1}
    holding = False
    for condition in conditions:
        for which, one in judged.items():
            row = condition.holds(one)
            if row is not None:
                of = "" if which is None else f" with {which}"
                typer.echo(f"unsmooth: {condition} holds{of}: {row.mean:.4f} at layer {row.layer}.", err=True)
                holding = True
    return holding


def _write(found: Found, several: bool, out: Path) -> None:
    """One scan into the folder itself; several each into its own, with one report of all."""
    folders: list[Path] = []
    for which, one in found.items():
        inside = out / BEFORE if which is None else folder_of(which, folders, out)
        folders.append(inside if several else out)
        one.save(folders[-1])
    scans = list(found.values())
    try:
        from unsmooth.report import save_figures, write_report

        write_report(scans, out / "report.html")
        save_figures(scans, out / "figures")
    except UnsmoothError as error:
        # The numbers are safe; a missing chart library is no reason to lose them.
        typer.echo(f"unsmooth: no report: {error}", err=True)


def _split(text: str) -> list[str]:
    """Split at commas outside brackets: ``mean_cosine(absolute=True, with_self=True),hfc_lfc``."""
    parts, depth = [""], 0
    for character in text:
        depth += (character == "(") - (character == ")")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts if part.strip()]
