"""``unsmooth explain MODEL… [DATA]``: what foretells the layers, verdicts where they hold, and the report's "Why"."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unsmooth.cli.before_after import Variants, as_one, folders_of, labelled
from unsmooth.cli.console import say
from unsmooth.cli.groups import grouped
from unsmooth.cli.options import AS_STORED, Debug, Loading, Out, Quiet, Showing, With, Words, bundled_page
from unsmooth.cli.words import read_words
from unsmooth.errors import UnsmoothError
from unsmooth.files import check_writable
from unsmooth.registry import check_names

if TYPE_CHECKING:
    from unsmooth.explaining import Explanation
    from unsmooth.scanning import Scan

BUNDLED = "page"
# Jacobians and spectra of few short sequences cost more than a scan of hundreds.
FEW = Showing(max_batches=8, batch_size=4, max_length=128)


@grouped
def explain(
    words: Words = None,
    with_: With = None,
    out: Out = None,
    scan: Annotated[
        Path | None, typer.Option(help="Folder that scan --out wrote: its curves go into the same report.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the explanation as JSON instead of tables.")] = False,
    quiet: Quiet = False,
    spectral_sequences: Annotated[int, typer.Option(min=1, help="Sequences whose attention is decomposed.")] = 2,
    jacobian: Annotated[bool, typer.Option(help="Also take norms of every block's Jacobian.")] = True,
    name: Annotated[str | None, typer.Option(help="What to call this explanation.")] = None,
    showing: Showing = FEW,
    loading: Loading = AS_STORED,
    debug: Debug = False,
) -> int:
    """Say why the tokens of each MODEL become alike or not: from weights, or with DATA from what they do.

    DATA may be 'page', the bundled one. Without DATA, demo models are shown their images; all others are judged by
    their weights alone.
    """
    check_names("remedy", with_)
    from unsmooth.explaining import explain as run_explain
    from unsmooth.scanning import load_scan
    from unsmooth.scanning.assemble import model_name

    asked = read_words(words)
    variants = Variants(with_)
    asked.check_alone(name=name, **{"with": with_})
    scans = [] if scan is None else [load_scan(scan)]
    if out is not None:
        check_writable(out)
    found: Found = {}
    how = showing.arguments()
    for word in asked.models:
        loaded = loading.open(word)
        variants.check(loaded, showing.blocks)
        called = name or model_name(loaded)
        for which in (None, *variants):
            found[which if len(asked.models) == 1 else word] = run_explain(
                loaded if which is None else variants.make(loaded, which, showing.blocks),
                bundled_page() if asked.data == BUNDLED else asked.shown_to(word, loaded, None),
                spectral_sequences=spectral_sequences,
                jacobian=jacobian,
                progress=not quiet,
                name=called if which is None else f"{called} with {which}",
                **how,
            )
    return _finish(found, scans, out, as_json, quiet)


# By model where there are several, else by remedies as they were asked for; None is the one model as it is, and first.
Found = dict[str | None, "Explanation"]


def _finish(found: Found, scans: list[Scan], out: Path | None, as_json: bool, quiet: bool) -> int:
    from unsmooth.cli.app import EXIT_FOUND

    if out is not None:
        _write(found, scans, out)
    if as_json:
        typer.echo(json.dumps(_as_json(found), allow_nan=False))
    elif not quiet:
        _print(found, out)
    broken = [note for one in found.values() for part in one.parts for note in part.notes if note.startswith("NaN")]
    if broken:
        say(f"unsmooth: {' '.join(broken)}", err=True)
    return EXIT_FOUND if broken else 0


def _as_json(found: Found) -> object:
    """The explanation, or an object of several."""
    from unsmooth.explaining.files import to_json

    each = {which: to_json(one) for which, one in found.items()}
    return each[None] if list(each) == [None] else as_one(each)


def _print(found: Found, out: Path | None) -> None:
    from unsmooth.cli.explain_tables import print_explanation, print_verdicts

    if len(found) == 1:
        print_explanation(found[None], out)
    else:
        print_verdicts(labelled(found), out)


def _write(found: Found, scans: list[Scan], out: Path) -> None:
    """One explanation into the folder itself; several each into its own, with one report of all."""
    folders = folders_of(found, out, several=len(found) > 1)
    for which, one in found.items():
        one.save(folders[which])
    try:
        from unsmooth.report import save_why_figures, write_report

        write_report(scans, out / "report.html", explanations=list(found.values()))
        for which, one in found.items():
            for part in one.parts:
                save_why_figures(part, folders[which] / "figures" / (part.stack if one.stacks else ""))
    except UnsmoothError as error:
        # The numbers are safe; a missing chart library is no reason to lose them.
        say(f"unsmooth: no report: {error}", err=True)
