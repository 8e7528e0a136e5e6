"""``unsmooth scan MODEL… DATA``: measure, print, save, draw."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unsmooth.cli.before_after import Variants
from unsmooth.cli.options import (
    AllowPickle,
    BatchSize,
    Blocks,
    Debug,
    Device,
    Dtype,
    MaxBatches,
    MaxLength,
    Offline,
    Out,
    Quiet,
    Revision,
    TrustRemoteCode,
    With,
    Words,
    bundled_page,
)
from unsmooth.cli.ranks import process_group
from unsmooth.cli.scan_output import Findings, check_parquet, finish
from unsmooth.cli.words import read_words
from unsmooth.files import check_writable

if TYPE_CHECKING:
    from torch import nn

    from unsmooth.models import Anatomy

__all__ = ["bundled_page", "scan"]

# What --explain looks at: Jacobians and spectra of few sequences cost more than a scan of hundreds.
EXPLAINED_BATCHES, EXPLAINED_BATCH = 2, 4


def scan(
    words: Words = None,
    metrics: Annotated[str | None, typer.Option(help="Names separated by commas; default the O(nd) set.")] = None,
    sites: Annotated[str, typer.Option(help="Sites separated by commas, or 'all'.")] = "residual",
    tokens: Annotated[str, typer.Option(help="'content' leaves special tokens out, 'all' does not.")] = "content",
    preset: Annotated[
        str | None, typer.Option(help="A published definition, in place of metrics, sites and tokens; see ls presets.")
    ] = None,
    baseline: Annotated[bool, typer.Option("--baseline", help="Also scan it with random weights.")] = False,
    explain: Annotated[
        bool,
        typer.Option(
            "--explain",
            help=f"Also say why, from the first {EXPLAINED_BATCHES * EXPLAINED_BATCH} sequences, in the same report.",
        ),
    ] = False,
    with_: With = None,
    out: Out = None,
    parquet: Annotated[
        bool, typer.Option("--parquet", help="Beside --out, also write scan.parquet; needs the extra parquet.")
    ] = False,
    fail_if: Annotated[
        list[str] | None,
        typer.Option(
            help='Exit 1 if this holds, such as "mean_cosine@last>0.95" or "mean_cosine@encoder:last>0.95"; '
            "beside --with, of the model with remedies."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the scan as JSON instead of a table.")] = False,
    quiet: Quiet = False,
    max_batches: MaxBatches = None,
    batch_size: BatchSize = 16,
    max_length: MaxLength = None,
    device: Device = None,
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
    """Measure how alike the tokens of each MODEL are at every layer, on DATA."""
    from unsmooth.models import find_anatomy, find_stacks, load
    from unsmooth.scanning import scan as run_scan
    from unsmooth.scanning.assemble import model_name
    from unsmooth.scanning.condition import Condition

    asked = read_words(words)
    conditions = [Condition.parse(text) for text in fail_if or ()]
    variants = Variants(with_)
    asked.check_alone(name=name, **{"with": with_})
    if parquet:
        check_parquet(out)
    if out is not None:
        check_writable(out)

    def opened() -> Iterator[tuple[str | None, nn.Module, str, Any]]:
        """Each to look at: under which key, the model, what to call it, what it is shown."""
        for word in asked.models:
            loaded = load(
                word,
                revision=revision,
                dtype=dtype,
                offline=offline,
                trust_remote_code=trust_remote_code,
                allow_pickle=allow_pickle,
            )
            variants.check(loaded, blocks)
            called, data = name or model_name(loaded), asked.shown_to(word, loaded, bundled_page())
            yield (word if len(asked.models) > 1 else None), loaded, called, data
            for which in variants:
                yield which, variants.make(loaded, which, blocks, seed), f"{called} with {which}", data

    found = Findings(several=bool(variants) or len(asked.models) > 1)
    with process_group(device) as (rank, place):
        with found.until_interrupted():
            for found.now, model, called, data in opened():
                if explain:
                    from unsmooth.explaining.run import check_explainable

                    check_explainable(find_anatomy(model, blocks), with_data=True)  # before the scan is paid for
                stacks = find_stacks(model, blocks)
                found.scans[found.now] = run_scan(
                    model,
                    data,
                    metrics=None if metrics is None else _split(metrics),
                    sites=_every_site(stacks) if sites == "all" else tuple(_split(sites)),
                    tokens=tokens,  # type: ignore[arg-type]
                    preset=preset,
                    max_batches=max_batches,
                    device=place,
                    progress=not quiet,
                    blocks=blocks,
                    baseline=baseline,
                    batch_size=batch_size,
                    max_length=max_length,
                    name=called,
                    seed=seed,
                )
                if explain and rank == 0:
                    from unsmooth.explaining import explain as run_explain

                    found.whys[found.now] = run_explain(
                        model,
                        data,
                        blocks=blocks,
                        max_batches=EXPLAINED_BATCHES,
                        batch_size=EXPLAINED_BATCH,
                        device=place,
                        progress=not quiet,
                        name=called,
                    )
        return finish(found, conditions, out, as_json, quiet, parquet) if rank == 0 else 0


def _every_site(stacks: Sequence[Anatomy]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(site for stack in stacks for site in stack.sites))


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
