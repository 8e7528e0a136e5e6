"""Similarity of the tokens at every layer, sequence by sequence, so that layers can be compared in pairs.

A scan keeps sums over sequences: enough for an interval at each layer, and not for one of the step between two. Here
the few streams of a batch are kept until it is over, which also lets tokens of massive norm be left out of all layers
alike: a change is then never a change of which tokens are looked at.

Shape suffixes: L residual layers, B sequences of a batch, S sequences in all, N tokens, D dimensions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from unsmooth.functional import METRICS, Tokens
from unsmooth.models import Anatomy, find_anatomy, origin_of, special_ids
from unsmooth.scanning.calling import Selection, as_inputs, call, quiet_evaluation, select_tokens, transformers_core
from unsmooth.scanning.confounds import MASSIVE_TOKEN_RATIO
from unsmooth.scanning.data import to_device
from unsmooth.scanning.inputs import preprocessing
from unsmooth.scanning.opening import open_data


@dataclass(frozen=True)
class BySequence:
    """What was measured.

    Attributes:
        every: Definition to its values (L, S) over all content tokens; NaN where fewer than two are there.
        ordinary: The same without the tokens that are massive at some layer.
        massive_S: How many of those there are.
    """

    every: dict[str, Tensor]
    ordinary: dict[str, Tensor]
    massive_S: Tensor

    @property
    def whole_S(self) -> Tensor:
        """Sequences that have a value by every definition, at every layer, with and without massive tokens."""
        values = torch.stack([*self.every.values(), *self.ordinary.values()])
        return values.isfinite().all(dim=0).all(dim=0)


def by_sequence(
    model: nn.Module,
    data: Any,
    definitions: Sequence[str],
    *,
    batch_size: int = 4,
    max_length: int | None = None,
    max_batches: int | None = None,
    tokenizer: Any | None = None,
    image_processor: Any | None = None,
) -> BySequence:
    """Measure the stream before the first block and after each, as `unsmooth.scan` does, keeping sequences apart.

    Args:
        model: Any model with blocks that are known.
        data: As for `unsmooth.scan`.
        definitions: Names of metrics of token vectors.
        batch_size: Sequences per batch, for data that is not batched yet.
        max_length: Tokens after which a text is cut.
        max_batches: Stop after so many batches.
        tokenizer: For texts, where the model does not come with one.
        image_processor: For images, likewise.

    Example:
        >>> layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        >>> stack = torch.nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        >>> by_sequence(stack, torch.randn(5, 10, 8), ["mean_cosine"]).every["mean_cosine"].shape
        torch.Size([4, 5])
    """
    anatomy = find_anatomy(model)
    core = transformers_core(model, anatomy)
    how = preprocessing(model, [anatomy], tokenizer, image_processor, batch_size, max_length)
    origin = origin_of(model)
    special = special_ids(model, how.tokenizer or (origin.tokenizer if origin else None))
    entry = Anatomy(model if core is None else core, anatomy.host, anatomy.blocks)
    parts = []
    with quiet_evaluation(model):
        for batch in islice(open_data(data, how).read(), max_batches):
            inputs = as_inputs(batch, core)
            selection = select_tokens(inputs, "content", special, anatomy.host.prefix_tokens(entry.model))
            streams, real_BN = _streams(entry, inputs, selection)
            parts.append(_measured(streams, real_BN, definitions))
    return _joined(parts, definitions)


def _streams(anatomy: Anatomy, inputs: Any, selection: Selection) -> tuple[list[Tensor], Tensor]:
    """The selected part of the stream at every layer, and which of its tokens count (B, N)."""
    streams: list[Tensor] = []
    device = next(anatomy.model.parameters()).device

    def keep(layer: int, site: str, tensor: Tensor) -> None:
        # Copied: what comes after the hook may write into it.
        streams.append(tensor[:, selection.window].to(torch.float64, copy=True))

    with anatomy.watch(keep, ("residual",)) as watch:
        call(anatomy.model, to_device(inputs, device))
    handed_BN = watch.real_tokens_BN if selection.real_BN is None else None
    chosen_BN = selection.selected_BN if handed_BN is None else handed_BN
    if chosen_BN is None:
        return streams, torch.ones(streams[0].shape[:2], dtype=torch.bool, device=device)
    return streams, chosen_BN[:, selection.window].to(device)


def _measured(streams: Sequence[Tensor], real_BN: Tensor, definitions: Sequence[str]) -> BySequence:
    massive_BN = _ever_massive(streams, real_BN)
    every = _values(streams, real_BN, definitions)
    ordinary = _values(streams, real_BN & ~massive_BN, definitions) if bool(massive_BN.any()) else every
    return BySequence(every, ordinary, massive_BN.sum(dim=1).cpu())


def _ever_massive(streams: Sequence[Tensor], real_BN: Tensor) -> Tensor:
    """Tokens (B, N) whose norm is far above the median of their sequence at one layer or more."""
    found_BN = torch.zeros_like(real_BN)
    for x_BND in streams:
        norms_BN = x_BND.norm(dim=-1)
        median_B1 = norms_BN.masked_fill(~real_BN, torch.nan).nanmedian(dim=1, keepdim=True).values
        found_BN |= real_BN & (norms_BN >= MASSIVE_TOKEN_RATIO * median_B1) & (norms_BN > 0)
    return found_BN


def _values(streams: Sequence[Tensor], chosen_BN: Tensor, definitions: Sequence[str]) -> dict[str, Tensor]:
    """Definition to values (L, B)."""
    too_few_B = chosen_BN.sum(dim=1) < 2

    def layers() -> Iterator[list[Tensor]]:
        for x_BND in streams:
            tokens = Tokens(x_BND, chosen_BN)  # what definitions share, such as singular values, is computed once
            found = [METRICS[name].function(tokens).double() for name in definitions]
            yield [value_B.masked_fill(too_few_B, torch.nan).cpu() for value_B in found]

    return dict(zip(definitions, map(torch.stack, zip(*layers(), strict=True)), strict=True))


def _joined(parts: Sequence[BySequence], definitions: Sequence[str]) -> BySequence:
    return BySequence(
        every={name: torch.cat([part.every[name] for part in parts], dim=1) for name in definitions},
        ordinary={name: torch.cat([part.ordinary[name] for part in parts], dim=1) for name in definitions},
        massive_S=torch.cat([part.massive_S for part in parts]),
    )
