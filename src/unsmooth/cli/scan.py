"""``unsmooth scan MODEL DATA``: measure, print, save, draw."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unsmooth.cli.ranks import process_group
from unsmooth.errors import UnsmoothError
from unsmooth.files import check_writable

if TYPE_CHECKING:
    from unsmooth.scanning import Scan
    from unsmooth.scanning.condition import Condition

DEFAULT_MODEL = "all-MiniLM-L6-v2"

# Spelled once, since each appears in the signature of a verb.
ModelArgument = Annotated[
    str,
    typer.Argument(metavar="[MODEL]", help="Hub name, folder, .gguf file, or all-MiniLM-L6-v2.", show_default=True),
]
DataArgument = Annotated[
    str | None,
    typer.Argument(metavar="[DATA]", help="Text file, folder of texts or images, or a text; default a bundled page."),
]


def scan(
    model: ModelArgument = DEFAULT_MODEL,
    data: DataArgument = None,
    metrics: Annotated[str | None, typer.Option(help="Names separated by commas; default the O(nd) set.")] = None,
    sites: Annotated[str, typer.Option(help="Sites separated by commas, or 'all'.")] = "residual",
    tokens: Annotated[str, typer.Option(help="'content' leaves special tokens out, 'all' does not.")] = "content",
    baseline: Annotated[bool, typer.Option("--baseline", help="Also scan it with random weights.")] = False,
    out: Annotated[Path | None, typer.Option(help="Folder for json, csv, manifest, figures and report.")] = None,
    fail_if: Annotated[
        list[str] | None, typer.Option(help='Exit 1 if this holds, such as "mean_cosine@last>0.95".')
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the scan as JSON instead of a table.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print no table, sentence or progress.")] = False,
    max_batches: Annotated[int | None, typer.Option(help="Stop after so many batches.")] = None,
    batch_size: Annotated[int, typer.Option(help="Sequences per batch.")] = 16,
    max_length: Annotated[int | None, typer.Option(help="Tokens after which a text is cut.")] = None,
    device: Annotated[
        str | None, typer.Option(help="Such as cuda or cpu; default the first GPU, else the CPU.")
    ] = None,
    dtype: Annotated[str | None, typer.Option(help="Such as bfloat16; default the checkpoint's own.")] = None,
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit of a hub model.")] = None,
    offline: Annotated[bool, typer.Option("--offline", help="Use what is on disk, never the network.")] = False,
    blocks: Annotated[str | None, typer.Option(help='Pattern of blocks, such as "encoder.layers.*".')] = None,
    name: Annotated[str | None, typer.Option(help="What to call this scan.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the random baseline.")] = 0,
    trust_remote_code: Annotated[bool, typer.Option("--trust-remote-code", help="Run code from the model.")] = False,
    allow_pickle: Annotated[bool, typer.Option("--allow-pickle", help="Read a pickle checkpoint.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
) -> int:
    """Measure how alike the tokens of MODEL are at every layer, on DATA."""
    from unsmooth.models import find_anatomy, load
    from unsmooth.scanning import ScanInterrupted
    from unsmooth.scanning import scan as run_scan
    from unsmooth.scanning.condition import Condition

    conditions = [Condition.parse(text) for text in fail_if or ()]
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
        chosen_sites = find_anatomy(loaded, blocks).sites if sites == "all" else tuple(_split(sites))
        interrupted = False
        try:
            found = run_scan(
                loaded,
                bundled_page() if data is None else data,
                metrics=None if metrics is None else _split(metrics),
                sites=chosen_sites,
                tokens=tokens,  # type: ignore[arg-type]
                max_batches=max_batches,
                device=place,
                progress=not quiet,
                blocks=blocks,
                baseline=baseline,
                batch_size=batch_size,
                max_length=max_length,
                name=name,
                seed=seed,
            )
        except ScanInterrupted as stop:
            if stop.scan is None:
                raise
            found, interrupted = stop.scan, True
        return _finish(found, conditions, out, as_json, quiet, interrupted) if rank == 0 else 0


def _finish(
    found: Scan, conditions: list[Condition], out: Path | None, as_json: bool, quiet: bool, interrupted: bool
) -> int:
    from unsmooth.cli.app import EXIT_FOUND, EXIT_INTERRUPTED
    from unsmooth.cli.tables import print_scan
    from unsmooth.scanning.files import to_json

    if out is not None:
        _write(found, out)
    if as_json:
        typer.echo(json.dumps(to_json(found), allow_nan=False))
    elif not quiet:
        print_scan(found, out)
    code = 0 if found.healthy else EXIT_FOUND
    for condition in conditions:
        row = condition.holds(found)
        if row is not None:
            typer.echo(f"unsmooth: {condition} holds: {row.mean:.4f} at layer {row.layer}.", err=True)
            code = EXIT_FOUND
    if not found.healthy:
        typer.echo("unsmooth: " + " ".join(note for note in found.notes if note.startswith("NaN")), err=True)
    if interrupted:
        where = f"what is done is saved in {out}" if out is not None else "nothing was saved; try --out DIR"
        typer.echo(f"unsmooth: Interrupted, {where}.", err=True)
        return EXIT_INTERRUPTED
    return code


def _write(found: Scan, out: Path) -> None:
    found.save(out)
    try:
        from unsmooth.report import save_figures, write_report

        write_report([found], out / "report.html")
        save_figures([found], out / "figures")
    except UnsmoothError as error:
        # The numbers are safe; a missing chart library is no reason to lose them.
        typer.echo(f"unsmooth: no report: {error}", err=True)


def bundled_page() -> list[str]:
    """The page of public-domain prose that a scan reads when it is given no data."""
    from importlib.resources import as_file, files

    from unsmooth.scanning.data import read_texts

    with as_file(files("unsmooth.scanning") / "page.txt") as path:
        return read_texts(path)


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
