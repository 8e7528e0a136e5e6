"""One forward pass over data, measured at every layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from unsmooth.errors import expected
from unsmooth.models import find_stacks, model_of, with_random_weights
from unsmooth.models.spread import check_device
from unsmooth.presets import Preset
from unsmooth.scanning.calling import TokenChoice
from unsmooth.scanning.data import Source
from unsmooth.scanning.inputs import preprocessing
from unsmooth.scanning.one_pass import ScanInterrupted, one_pass
from unsmooth.scanning.opening import open_data
from unsmooth.scanning.plan import Plan, check_at_least_one, check_metrics, check_sites, check_tokens, sites_of
from unsmooth.scanning.published import as_published, check_alone, check_fits, find_preset
from unsmooth.scanning.result import Scan
from unsmooth.scanning.together import compared_with
from unsmooth.stopping import ended_as_interrupted


def scan(
    model: nn.Module | str,
    data: Any,
    *,
    metrics: Sequence[str] | None = None,
    sites: Sequence[str] = ("residual",),
    tokens: TokenChoice = "content",
    preset: str | Preset | None = None,
    max_batches: int | None = None,
    device: torch.device | str | None = None,
    progress: bool = True,
    blocks: str | None = None,
    baseline: bool = False,
    confounds: bool = True,
    fingerprint: bool = True,
    batch_size: int = 16,
    max_length: int | None = None,
    tokenizer: Any | None = None,
    image_processor: Any | None = None,
    column: str | None = None,
    name: str | None = None,
    seed: int = 0,
) -> Scan:
    """Measure how alike the tokens of a Transformer are at every layer.

    A model with several stacks (an encoder and a decoder, two towers) is measured in each, layers counted from 0. A
    stack whose inputs the data does not have is left out, and a note says so.

    One forward pass in evaluation mode; hooks turn each tensor into a few sums where it is and are gone afterwards.
    Other threads may scan the model too, or serve it: their calls are not seen, and give what they would give. Only a
    model in training mode is in evaluation mode for all of them until its last scan ends, and one that `device` moves
    is moved for all. Under ``torchrun`` with an initialised process group the batches are dealt out to the ranks and
    every rank returns the result of all.

    Ctrl-C, or SIGTERM where nobody else handles it, ends a scan with `ScanInterrupted`, which holds what was measured.

    Args:
        model: An nn.Module, a transformers pipeline, or a name for `unsmooth.load`.
        data: Texts, images, token ids, arrays or a dict of them, a DataFrame, a data set, a DataLoader, a generator of
            batches, or the path of a folder or text file.
            In a dict, "attention_mask" marks real tokens; "token_mask" (True = real) and "special_tokens_mask" do the
            same for models that take no such arguments, and are not handed to the model. A decoder's have "decoder_" in
            front. Of `blocks` that read what no mask in the data is about, "token_mask" says which tokens are real.
        metrics: Names such as "effective_rank" or "mean_cosine(absolute=True)"; None for the O(nd) set.
        sites: Where in each block, see `unsmooth.models.SITES`; "all" for every one that the model has.
        tokens: "content" leaves special tokens out, "all" does not; padding is never counted.
        preset: A published definition by name, such as "vita"; it fixes metrics, sites and tokens. See
            `unsmooth ls presets`.
        max_batches: Stop after so many batches.
        device: Move the model there for the scan, and back.
        progress: Show a progress bar on a terminal.
        blocks: Pattern over module paths, such as "encoder.layers.*", for some blocks alone; "auto:any" for the longest
            list of a model, with attention or without.
        baseline: Also scan the same architecture with random weights.
        confounds: Look for massive tokens and outlier dimensions too; half of what a scan of one metric costs.
        fingerprint: Hash all weights, so that the manifest says of which they were; seconds on many gigabytes.
        batch_size: Sequences per batch, for data that is not batched yet.
        max_length: Tokens after which a text is cut; default 512 or the model's limit.
        tokenizer: For texts, where the model does not come with one.
        image_processor: For images, likewise.
        column: Which column of a table, data set or .jsonl file holds the texts or images, where it is not plain.
        name: What to call the scan; default the model's name.
        seed: Seed of the random baseline.

    Returns:
        A `Scan`: numbers with their definitions.

    Example:
        >>> import torch
        >>> layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        >>> found = scan(torch.nn.TransformerEncoder(layer, 3), torch.randn(4, 10, 8), progress=False)
        >>> found.layers
        (0, 1, 2, 3)
    """
    chosen = None if preset is None else find_preset(preset)
    if chosen is not None:
        check_alone(chosen, metrics=metrics is None, sites=sites == ("residual",), tokens=tokens == "content")
        metrics, sites, tokens = chosen.measured, chosen.sites, chosen.tokens
    plan = Plan(
        metrics=check_metrics(metrics, maps=True),
        sites=check_sites(sites),
        tokens=check_tokens(tokens),
        max_batches=check_at_least_one("max_batches", max_batches),
        device=None if device is None else check_device(device),
        progress=progress,
        blocks=blocks,
        seed=seed,
        name=name,
        confounds=confounds,
        fingerprint=fingerprint,
    )
    check_at_least_one("batch_size", batch_size)
    check_at_least_one("max_length", max_length)
    module = model_of(model)
    stacks = find_stacks(module, blocks)
    if chosen is not None:
        check_fits(chosen, stacks)
    plan = replace(plan, sites=sites_of(stacks, plan.sites))
    how = preprocessing(module, stacks, tokenizer, image_processor, batch_size, max_length, column)
    source = open_data(data, how)
    if baseline and not source.replayable:
        raise expected("data that can be read twice for a baseline", "a one-shot iterator", "a list or DataLoader")
    with ended_as_interrupted():
        [found] = one_pass(module, stacks, source, [plan], how.tokenizer, label="scan")
        found = _with_baseline(found, module, source, plan, how.tokenizer) if baseline else found
    return found if chosen is None else as_published(found, chosen)


def _with_baseline(found: Scan, module: nn.Module, source: Source, plan: Plan, tokenizer: Any | None) -> Scan:
    plan = replace(plan, name=f"{found.name} (random weights)")
    try:
        random = with_random_weights(module, plan.seed)
        [other] = one_pass(random, find_stacks(random, plan.blocks), source, [plan], tokenizer, label="random weights")
    except KeyboardInterrupt:
        raise ScanInterrupted(replace(found, notes=(*found.notes, "Interrupted before the baseline."))) from None
    return compared_with(found, other)
