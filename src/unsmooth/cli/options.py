"""Options that several verbs share, spelled once; and what they open."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

DEFAULT_MODEL = "all-MiniLM-L6-v2"
"""Where the demo models are not in the installation."""

Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[MODEL…] [DATA]",
        help="Models: hub name, folder, .gguf file, all-MiniLM-L6-v2, timm:NAME, demo:plain, demo:sharpen or "
        "demo:smooth; by default the last three. Then data: text file, folder of texts or images, or a text; by "
        "default a bundled page, or the demo models' images.",
    ),
]
Out = Annotated[Path | None, typer.Option(help="Folder for json, csv, manifest, figures and report.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print no table, sentence or progress.")]
MaxBatches = Annotated[int | None, typer.Option(help="Stop after so many batches.")]
BatchSize = Annotated[int, typer.Option(help="Sequences per batch.")]
MaxLength = Annotated[int | None, typer.Option(help="Tokens after which a text is cut.")]
Device = Annotated[str | None, typer.Option(help="Such as cuda or cpu; default the first GPU, else the CPU.")]
Dtype = Annotated[str | None, typer.Option(help="Such as bfloat16; default the checkpoint's own.")]
Revision = Annotated[str | None, typer.Option(help="Branch, tag or commit of a hub model.")]
Offline = Annotated[bool, typer.Option("--offline", help="Use what is on disk, never the network.")]
Blocks = Annotated[str | None, typer.Option(help='Pattern of blocks, such as "encoder.layers.*".')]
TrustRemoteCode = Annotated[bool, typer.Option("--trust-remote-code", help="Run code from the model.")]
AllowPickle = Annotated[bool, typer.Option("--allow-pickle", help="Read a pickle checkpoint.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show tracebacks.")]
With = Annotated[
    list[str] | None,
    typer.Option(
        "--with",
        metavar="REMEDY",
        help='Also show the model with this remedy, such as "deescalate(tau=0.5)" or "a + b"; may be repeated, each '
        "for itself. See `unsmooth ls remedies`.",
    ),
]


def bundled_page() -> list[str]:
    """The page of public-domain prose that a scan reads when it is given no data."""
    from importlib.resources import as_file, files

    from unsmooth.scanning.data import read_texts

    with as_file(files("unsmooth.scanning") / "page.txt") as path:
        return read_texts(path)
