"""``unsmooth scan MODEL… DATA``: measure, print, save, draw."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unsmooth.cli.before_after import Variants
from unsmooth.cli.groups import grouped
from unsmooth.cli.options import ALL_OF_IT, AS_STORED, Debug, Loading, Out, Quiet, Showing, With, Words, bundled_page
from unsmooth.cli.ranks import process_group
from unsmooth.cli.scan_output import Findings, check_parquet, finish
from unsmooth.cli.words import read_words
from unsmooth.files import check_writable
from unsmooth.registry import check_names
from unsmooth.spec import split_at_commas
from unsmooth.stopping import ended_as_interrupted

if TYPE_CHECKING:
    from torch import nn

    from unsmooth.scanning.condition import Condition

# What --explain looks at: Jacobians and spectra of few sequences cost more than a scan of hundreds.
EXPLAINED = Showing(max_batches=2, batch_size=4, max_length=128)


@grouped
def scan(
    words: Words = None,
    metrics: Annotated[str | None, typer.Option(help="Names separated by commas; default the O(nd) set.")] = None,
    sites: Annotated[str, typer.Option(help="Sites separated by commas, or 'all'.")] = "residual",
    tokens: Annotated[str, typer.Option(help="'content' leaves special tokens out, 'all' does not.")] = "content",
    preset: Annotated[
        str | None, typer.Option(help="A published definition, in place of metrics, sites and tokens; see ls presets.")
    ] = None,
    baseline: Annotated[bool, typer.Option("--baseline", help="Also scan it with random weights.")] = False,
    fingerprint: Annotated[
        bool, typer.Option("--fingerprint/--no-fingerprint", help="Hash all weights into the manifest.")
    ] = True,
    confounds: Annotated[
        bool, typer.Option("--confounds/--no-confounds", help="Look for massive tokens and outlier dimensions too.")
    ] = True,
    explain: Annotated[
        bool, typer.Option("--explain", help="Also say why, from the first 8 sequences, in the same report.")
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
    name: Annotated[str | None, typer.Option(help="What to call this scan.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the random baseline, and of what remedies draw.")] = 0,
    showing: Showing = ALL_OF_IT,
    loading: Loading = AS_STORED,
    debug: Debug = False,
) -> int:
    """Measure how alike the tokens of each MODEL are at every layer, on DATA."""
    check_names("metric", [*split_at_commas(metrics or ""), *(re.split("[@<>]", text)[0] for text in fail_if or ())])
    check_names("remedy", with_)
    check_names("preset", None if preset is None else [preset])
    from unsmooth.models import find_stacks
    from unsmooth.scanning import scan as run_scan
    from unsmooth.scanning.assemble import model_name
    from unsmooth.scanning.condition import Condition
    from unsmooth.scanning.plan import check_metrics, check_sites, check_tokens, sites_of
    from unsmooth.scanning.published import find_preset

    asked = read_words(words)
    conditions = [Condition.parse(text) for text in fail_if or ()]
    measured = None if metrics is None else list(split_at_commas(metrics))
    chosen = None if preset is None else find_preset(preset)
    if chosen is None:
        measured = _with_those_of(conditions, measured)
    where = check_sites(split_at_commas(sites))
    check_tokens(tokens)
    names = [metric.name for metric in check_metrics(chosen.measured if chosen else measured, maps=True)]
    variants = Variants(with_)
    asked.check_alone(name=name, **{"with": with_})
    if parquet:
        check_parquet(out)
    if out is not None:
        check_writable(out)

    def opened() -> Iterator[tuple[str | None, nn.Module, str, Any]]:
        """Each to look at: under which key, the model, what to call it, what it is shown."""
        for word in asked.models:
            loaded = loading.open(word)
            variants.check(loaded, showing.blocks)
            stacks = find_stacks(loaded, showing.blocks) if conditions else []
            for condition in conditions:
                condition.check(stacks, chosen.sites if chosen else sites_of(stacks, where), names)
            called, data = name or model_name(loaded), asked.shown_to(word, loaded, bundled_page())
            yield (word if len(asked.models) > 1 else None), loaded, called, data
            for which in variants:
                yield which, variants.make(loaded, which, showing.blocks, seed), f"{called} with {which}", data

    found = Findings(several=bool(variants) or len(asked.models) > 1)
    with process_group(showing.device) as rank:
        with found.until_interrupted(), ended_as_interrupted():
            for found.now, model, called, data in opened():
                if explain:
                    from unsmooth.explaining.run import check_explainable

                    check_explainable(find_stacks(model, showing.blocks))  # before it is paid for
                found.scans[found.now] = run_scan(
                    model,
                    data,
                    metrics=measured,
                    sites=where,
                    tokens=tokens,  # type: ignore[arg-type]
                    preset=chosen,
                    baseline=baseline,
                    confounds=confounds,
                    fingerprint=fingerprint,
                    progress=not quiet,
                    name=called,
                    seed=seed,
                    **showing.arguments(),
                )
                if explain and rank == 0:
                    from unsmooth.explaining import explain as run_explain

                    few = replace(EXPLAINED, device=showing.device, blocks=showing.blocks, column=showing.column)
                    found.whys[found.now] = run_explain(model, data, progress=not quiet, name=called, **few.arguments())
        return finish(found, conditions, out, as_json, quiet, parquet) if rank == 0 else 0


def _with_those_of(conditions: list[Condition], metrics: list[str] | None) -> list[str] | None:
    """Metrics, and those that only a condition names; None for the default ones."""
    from unsmooth.scanning.plan import check_metrics

    known = [metric.name for metric in check_metrics(metrics, maps=True)]
    also = dict.fromkeys(condition.metric for condition in conditions if condition.metric not in known)
    return [*known, *also] if also else metrics
