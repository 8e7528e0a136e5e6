"""Options that several verbs share, spelled once; and what they open."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unsmooth.cli.ranks import own_device

if TYPE_CHECKING:
    from torch import nn

    from unsmooth.executing import Crew
    from unsmooth.stopping import Deadline

DEFAULT_MODEL = "all-MiniLM-L6-v2"
"""Where the demo models are not in the installation."""

Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[MODEL…] [DATA]",
        help="Models: hub name, folder, .gguf file, all-MiniLM-L6-v2, timm:NAME, demo:plain, demo:sharpen or "
        "demo:smooth; by default the last three. Then data: text file, table, folder of texts or images, or a text; by "
        "default a bundled page, or the demo models' images.",
    ),
]
Out = Annotated[Path | None, typer.Option(help="Folder for json, csv, manifest, figures and report.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print no table, sentence or progress.")]
Blocks = Annotated[str | None, typer.Option(help='Pattern of blocks, such as "encoder.layers.*", or "auto:any".')]
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


@dataclass(frozen=True)
class Loading:
    """How a model is opened: a group of options, see `unsmooth.cli.groups`."""

    dtype: Annotated[str | None, typer.Option(help="Such as bfloat16; default the checkpoint's own.")] = None
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit of a hub model.")] = None
    offline: Annotated[bool, typer.Option("--offline", help="Use what is on disk, never the network.")] = False
    trust_remote_code: Annotated[bool, typer.Option("--trust-remote-code", help="Run code from the model.")] = False
    allow_pickle: Annotated[bool, typer.Option("--allow-pickle", help="Read a pickle checkpoint.")] = False

    def open(self, word: str) -> nn.Module:
        """The model that a user means by a word."""
        from unsmooth.models import load

        return load(word, **vars(self))


@dataclass(frozen=True)
class Showing:
    """How a model is shown data, and where: a group of options."""

    max_batches: Annotated[int | None, typer.Option(min=1, help="Stop after so many batches.")] = None
    batch_size: Annotated[int, typer.Option(min=1, help="Sequences per batch.")] = 16
    max_length: Annotated[int | None, typer.Option(min=1, help="Tokens after which a text is cut.")] = None
    device: Annotated[str | None, typer.Option(help="Such as cuda or cpu; default the first GPU, else the CPU.")] = None
    blocks: Blocks = None
    column: Annotated[str | None, typer.Option(help="Column that holds the texts of a .csv, .tsv or .jsonl file.")] = (
        None
    )

    def arguments(self) -> dict[str, Any]:
        """As `unsmooth.scan`, `unsmooth.explain` and their like take them."""
        return {**vars(self), "device": own_device(self.device)}


@dataclass(frozen=True)
class Working:
    """Who trains, and for how long: a group of options."""

    engine: Annotated[
        str | None,
        typer.Option(
            metavar="local|ray|slurm",
            help="Who trains: processes of this machine, a Ray cluster, SLURM through submitit. Default this process, "
            "or as many of this machine as --processes says.",
        ),
    ] = None
    processes: Annotated[int, typer.Option(help="So many at a time; those of one machine share its device.")] = 1
    cores: Annotated[float | None, typer.Option(help="Of each process; default this machine's, shared.")] = None
    gpus: Annotated[
        float | None,
        typer.Option(help="Of each process of ray or slurm; default this machine's, shared."),
    ] = None
    patience: Annotated[
        float, typer.Option(help="Minutes in which a process may have nothing to tell; then another takes its run up.")
    ] = 10.0
    total_budget: Annotated[
        str | None,
        typer.Option(metavar="2h|90m|30s", help="Of all runs: save and stop then; the same command goes on."),
    ] = None

    def crew(self, quiet: bool) -> Crew:
        """Who trains."""
        from unsmooth.cli.train_progress import shown_progress
        from unsmooth.executing import Crew

        # Bars of several processes would write over each other.
        telling = partial(shown_progress, quiet=quiet, bars=False)
        own = {"cores": self.cores, "gpus": self.gpus, "patience": 60.0 * self.patience, "telling": telling}
        return Crew.chosen(self.engine, self.processes, **own)

    @property
    def deadline(self) -> Deadline:
        """From now on."""
        from unsmooth.stopping import Deadline

        return Deadline.read(self.total_budget)


AS_STORED, ALL_OF_IT, ALONE = Loading(), Showing(), Working()
"""What the groups are unless told otherwise."""


def bundled_page() -> list[str]:
    """The page of public-domain prose that a scan reads when it is given no data."""
    from importlib.resources import as_file, files

    from unsmooth.scanning.data import read_texts

    with as_file(files("unsmooth.scanning") / "page.txt") as path:
        return read_texts(path)
