"""Padding that is marked in sounds, of whose samples or frames a model makes fewer tokens: which of those are real."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn

from unsmooth.errors import expected
from unsmooth.models.anatomy import Anatomy
from unsmooth.models.host import Reads
from unsmooth.models.stacks import pattern_of
from unsmooth.models.walk import modules_of


def with_frames(fields: Mapping[str, Any], core: nn.Module) -> Mapping[str, Any]:
    """A mask of samples beside one of the frames that the model makes of them, by the model's own arithmetic.

    In wav2vec 2.0 (Baevski et al. 2020, arXiv 2006.11477) a frame is real where all samples are that its convolutions
    reach.
    """
    mask = fields.get("attention_mask")
    known = "token_mask" in fields or not ("input_values" in fields or "input_features" in fields)
    if known or not isinstance(mask, Tensor) or mask.ndim != 2:
        return fields
    for module in modules_of(core):
        masked: Any = getattr(module, "_get_feature_vector_attention_mask", None)
        lengths: Any = getattr(module, "_get_feat_extract_output_lengths", None)
        if masked is not None and lengths is not None:
            # What may come behind the blocks is no matter here.
            plain = {"add_adapter": False} if "add_adapter" in inspect.signature(masked).parameters else {}
            frames = int(lengths(torch.tensor(mask.shape[1]), **plain))
            return {**fields, "token_mask": masked(frames, mask.long(), **plain) != 0}
    return fields


def is_mask(name: str, one: Any) -> bool:
    """Whether a field of a batch is a mask that a model reads, of one entry for each token, frame or sample."""
    return name.endswith("mask") and "token" not in name and isinstance(one, Tensor) and one.ndim == 2


def marking(inputs: Mapping[str, Any], moves: Callable[[Mapping[str, Tensor]], bool]) -> str | None:
    """The mask of the sounds that become a stack's tokens: it has their length, and is not that of ids.

    `moves` says whether other inputs in place of some change what enters the stack.
    """
    tensors = {name: one for name, one in inputs.items() if isinstance(one, Tensor)}
    sounds = {name: one for name, one in tensors.items() if one.is_floating_point() and not name.endswith("mask")}
    ids = [one.shape for name, one in tensors.items() if name not in sounds and not name.endswith("mask")]
    for name, mask in tensors.items():
        for field, one in sounds.items():
            if is_mask(name, mask) and mask.shape not in ids and one.ndim in (2, 3) and len(one) == len(mask):
                with suppress(Exception):  # each model has its own way to refuse what it was not made for
                    if mask.shape[1] in one.shape[1:] and moves({field: one + 1}):
                        return name
    return None


def marks_padding(fields: Mapping[str, Any], reads: Reads) -> bool:
    """Whether a mask of what the tokens of a stack are made of marks padding, and none of the tokens is there."""
    finer = fields.get(reads.marked or "")
    return isinstance(finer, Tensor) and "token_mask" not in fields and bool((finer == 0).any())


def made_of(finer_BS: Tensor, anatomy: Anatomy, tokens: int, handed_BN: Tensor | None) -> Tensor:
    """Which of so many tokens are real: as the blocks are told, else by the model's own arithmetic of lengths.

    Blocks may be told of windows alone, and not of padding: so their mask is believed where it leaves about as much as
    the finer one, but for what convolutions reach beyond the edge.

    Raises:
        UnsmoothError: Neither says it.
    """
    kept, width = (finer_BS != 0).long(), finer_BS.shape[1]
    if width == tokens:
        return kept != 0
    lengths = kept.sum(dim=1)
    if handed_BN is not None and len(handed_BN) == len(kept):
        gap = (handed_BN.sum(dim=1).to(kept.device) - lengths * tokens / width).abs()
        if bool((gap <= 2 + tokens / 20).all()):
            return handed_BN
    first = next(iter(anatomy.blocks.values()))
    holding = [module for module in modules_of(anatomy.model) if first in modules_of(module)]
    ends = kept.cummin(dim=1).values.equal(kept)
    for module in reversed(holding if ends else []):
        for name in ("_get_feat_extract_output_lengths", "_get_subsampling_output_length"):
            arithmetic: Any = getattr(module, name, None)
            if arithmetic is None:
                continue
            made: list[Any] = []
            with suppress(Exception):  # some ask a configuration for what another part's has
                # One after the other, as some take no more; some return lengths after several steps.
                made = [arithmetic(one) for one in (*lengths, torch.tensor(width))]
            for steps in zip(*(one if isinstance(one, tuple) else (one,) for one in made), strict=True):
                *ended, whole = map(int, steps)
                if whole == tokens:
                    return torch.arange(tokens) < torch.tensor(ended)[:, None]
    raise expected(
        f"blocks that are told which of their {tokens} tokens are padding, as {anatomy.reads.marked!r} marks some",
        f"{pattern_of(next(iter(anatomy.blocks)))!r}, which are not",
        'a "token_mask" of (batch, tokens) in the data, True = a token to be measured',
    )
