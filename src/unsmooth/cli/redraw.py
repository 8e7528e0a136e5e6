"""``unsmooth redraw KIND [MODEL…] [DATA]``: a published kind of figure, for other models."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unsmooth.cli.options import (
    DEFAULT_MODEL,
    AllowPickle,
    BatchSize,
    Blocks,
    Debug,
    Device,
    Dtype,
    MaxBatches,
    MaxLength,
    Offline,
    Quiet,
    Revision,
    TrustRemoteCode,
    Words,
    bundled_page,
)
from unsmooth.cli.ranks import own_device
from unsmooth.cli.words import read_words
from unsmooth.files import check_writable

if TYPE_CHECKING:
    from torch import nn


def redraw(
    kind: Annotated[
        str, typer.Argument(metavar="KIND", help="fourier, variance, cosine, rank_residual or self_similarity.")
    ],
    words: Words = None,
    out: Annotated[Path, typer.Option(help="Folder for the figure as svg and png, its csv and a page.")] = Path(
        "redrawn"
    ),
    quiet: Quiet = False,
    max_batches: MaxBatches = None,
    batch_size: BatchSize = 16,
    max_length: MaxLength = None,
    device: Device = None,
    dtype: Dtype = None,
    revision: Revision = None,
    offline: Offline = False,
    blocks: Blocks = None,
    trust_remote_code: TrustRemoteCode = False,
    allow_pickle: AllowPickle = False,
    debug: Debug = False,
) -> int:
    """Draw a published kind of figure for each MODEL on DATA; by default for the models that come along."""
    from unsmooth.models import load
    from unsmooth.report.plates import write_plate
    from unsmooth.report.redraw import KINDS
    from unsmooth.report.redraw import redraw as lay_out
    from unsmooth.scanning.assemble import model_name

    chosen = KINDS[kind.replace("-", "_")]
    asked = read_words(words or ([DEFAULT_MODEL] if chosen.data == "texts" else None))
    check_writable(out)

    def opened() -> Iterator[tuple[str, nn.Module, Any]]:
        for word in asked.models:
            model = load(
                word,
                revision=revision,
                dtype=dtype,
                offline=offline,
                trust_remote_code=trust_remote_code,
                allow_pickle=allow_pickle,
            )
            yield model_name(model), model, asked.shown_to(word, model, bundled_page())

    settings = {"max_batches": max_batches, "batch_size": batch_size, "max_length": max_length}
    plate = lay_out(chosen, opened(), device=own_device(device), blocks=blocks, progress=not quiet, **settings)
    files = write_plate(plate, out)
    if not quiet:
        from rich.console import Console
        from rich.markup import escape

        console = Console()
        console.print(f"[bold]{escape(plate.sentence)}[/bold]", soft_wrap=True)
        for path in files:
            console.print(escape(str(path)), soft_wrap=True)
    return 0
