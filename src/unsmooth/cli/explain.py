"""``unsmooth explain MODEL [DATA]``: verdicts by layer, predicted beside measured, and the report's "Why"."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unsmooth.cli.scan import DEFAULT_MODEL, ModelArgument, bundled_page
from unsmooth.errors import UnsmoothError
from unsmooth.files import check_writable

if TYPE_CHECKING:
    from unsmooth.explaining import Explanation
    from unsmooth.scanning import Scan

BUNDLED = "page"


def explain(
    model: ModelArgument = DEFAULT_MODEL,
    data: Annotated[
        str | None,
        typer.Argument(
            metavar="[DATA]",
            help="Text file, folder of texts or images, a text, or 'page' for the bundled one; default weights only.",
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for json, csv, manifest, figures and report.")] = None,
    scan: Annotated[
        Path | None, typer.Option(help="Folder that scan --out wrote: its curves go into the same report.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the explanation as JSON instead of tables.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print no table, sentence or progress.")] = False,
    max_batches: Annotated[int, typer.Option(help="Stop after so many batches.")] = 8,
    batch_size: Annotated[int, typer.Option(help="Sequences per batch.")] = 4,
    max_length: Annotated[int, typer.Option(help="Tokens after which a text is cut.")] = 128,
    spectral_sequences: Annotated[int, typer.Option(help="Sequences whose attention is decomposed.")] = 2,
    jacobian: Annotated[bool, typer.Option(help="Also take norms of every block's Jacobian.")] = True,
    device: Annotated[str | None, typer.Option(help="Such as cuda or cpu; default where the model loads.")] = None,
    dtype: Annotated[str | None, typer.Option(help="Such as float32; default the checkpoint's own.")] = None,
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit of a hub model.")] = None,
    offline: Annotated[bool, typer.Option("--offline", help="Use what is on disk, never the network.")] = False,
    blocks: Annotated[str | None, typer.Option(help='Pattern of blocks, such as "encoder.layers.*".')] = None,
    name: Annotated[str | None, typer.Option(help="What to call this explanation.")] = None,
    trust_remote_code: Annotated[bool, typer.Option("--trust-remote-code", help="Run code from the model.")] = False,
    allow_pickle: Annotated[bool, typer.Option("--allow-pickle", help="Read a pickle checkpoint.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
) -> int:
    """Say why the tokens of MODEL become alike or not: from weights alone, or with DATA also from what they do."""
    from unsmooth.explaining import explain as run_explain
    from unsmooth.models import load
    from unsmooth.scanning import load_scan

    scans = [] if scan is None else [load_scan(scan)]
    if out is not None:
        check_writable(out)
    loaded = load(
        model,
        revision=revision,
        dtype=dtype,
        offline=offline,
        trust_remote_code=trust_remote_code,
        allow_pickle=allow_pickle,
    )
    found = run_explain(
        loaded,
        bundled_page() if data == BUNDLED else data,
        blocks=blocks,
        max_batches=max_batches,
        batch_size=batch_size,
        max_length=max_length,
        spectral_sequences=spectral_sequences,
        jacobian=jacobian,
        device=device,
        progress=not quiet,
        name=name,
    )
    return _finish(found, scans, out, as_json, quiet)


def _finish(found: Explanation, scans: list[Scan], out: Path | None, as_json: bool, quiet: bool) -> int:
    from unsmooth.cli.app import EXIT_FOUND
    from unsmooth.cli.explain_tables import print_explanation
    from unsmooth.explaining.files import to_json

    if out is not None:
        _write(found, scans, out)
    if as_json:
        typer.echo(json.dumps(to_json(found), allow_nan=False))
    elif not quiet:
        print_explanation(found, out)
    broken = [note for note in found.notes if note.startswith("NaN")]
    if broken:
        typer.echo(f"unsmooth: {' '.join(broken)}", err=True)
    return EXIT_FOUND if broken else 0


def _write(found: Explanation, scans: list[Scan], out: Path) -> None:
    found.save(out)
    try:
        from unsmooth.report import save_why_figures, write_report

        write_report(scans, out / "report.html", explanations=[found])
        save_why_figures(found, out / "figures")
    except UnsmoothError as error:
        # The numbers are safe; a missing chart library is no reason to lose them.
        typer.echo(f"unsmooth: no report: {error}", err=True)
