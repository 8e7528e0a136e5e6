"""``unsmooth redraw KIND [MODEL…] [DATA]``: a published kind of figure, for other models."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unsmooth.cli.groups import grouped
from unsmooth.cli.options import (
    ALL_OF_IT,
    AS_STORED,
    DEFAULT_MODEL,
    Debug,
    Loading,
    Quiet,
    Showing,
    Words,
    bundled_page,
)
from unsmooth.cli.words import read_words
from unsmooth.files import check_writable

if TYPE_CHECKING:
    from torch import nn


@grouped
def redraw(
    kind: Annotated[
        str, typer.Argument(metavar="KIND", help="fourier, variance, cosine, rank_residual or self_similarity.")
    ],
    words: Words = None,
    out: Annotated[Path, typer.Option(help="Folder for the figure as svg and png, its csv and a page.")] = Path(
        "redrawn"
    ),
    quiet: Quiet = False,
    showing: Showing = ALL_OF_IT,
    loading: Loading = AS_STORED,
    debug: Debug = False,
) -> int:
    """Draw a published kind of figure for each MODEL on DATA; by default for the models that come along."""
    from unsmooth.report.plates import write_plate
    from unsmooth.report.redraw import KINDS
    from unsmooth.report.redraw import redraw as lay_out
    from unsmooth.scanning.assemble import model_name

    chosen = KINDS[kind.replace("-", "_")]
    asked = read_words(words or ([DEFAULT_MODEL] if chosen.data == "texts" else None))
    check_writable(out)

    def opened() -> Iterator[tuple[str, nn.Module, Any]]:
        for word in asked.models:
            model = loading.open(word)
            yield model_name(model), model, asked.shown_to(word, model, bundled_page())

    plate = lay_out(chosen, opened(), progress=not quiet, **showing.arguments())
    files = write_plate(plate, out)
    if not quiet:
        from rich.markup import escape

        from unsmooth.cli.console import Console

        console = Console()
        console.print(f"[bold]{escape(plate.sentence)}[/bold]", soft_wrap=True)
        for path in files:
            console.print(escape(str(path)), soft_wrap=True)
    return 0
