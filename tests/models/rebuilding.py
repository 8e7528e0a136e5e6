"""Attention rebuilt from extracted weights and captured maps, beside what the model itself computed."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from tests.models.entry import Entry, Padding, real_tokens
from unsmooth.models import ValueProjection, find_anatomy, value_projection


@dataclass
class Seen:
    """What one pass showed, by layer; `blocks` are the blocks called, from 0."""

    sites: dict[tuple[int, str], Tensor] = field(default_factory=dict)
    maps: dict[int, Tensor] = field(default_factory=dict)
    blocks: list[int] = field(default_factory=list)


def watch_all(model: nn.Module, batch: Mapping[str, Any]) -> Seen:
    """Sites and maps of one pass."""
    anatomy, seen = find_anatomy(model), Seen()

    def note(layer: int, site: str, tensor: Tensor) -> None:
        seen.sites[layer, site] = tensor.clone()

    sites = anatomy.sites  # looked for in a pass of its own, which plain hooks would see too
    handles = [
        block.register_forward_pre_hook(lambda module, args, i=i: seen.blocks.append(i))
        for i, block in enumerate(anatomy.blocks.values())
    ]
    with torch.no_grad(), anatomy.watch(note, sites), anatomy.watch_attention(seen.maps.__setitem__):
        model(**batch)
    for handle in handles:
        handle.remove()
    return seen


def implementations(entry: Entry) -> list[str]:
    """The ways in which the entry's model can compute attention."""
    model = entry.build()
    if not hasattr(model, "set_attn_implementation"):
        return ["own"]
    return ["sdpa", "eager"] if model._supports_sdpa else ["eager"]


def model_with(entry: Entry, implementation: str) -> Any:
    """The entry's model with that way of computing attention."""
    model = entry.model()
    if implementation == "own":
        return model
    # Built anew, because not every family can change it later.
    other = type(model)._from_config(copy.deepcopy(model.config), attn_implementation=implementation).eval()
    other.load_state_dict(model.state_dict())
    assert other.config._attn_implementation == implementation
    return other


def at_real(tensor_BN: Tensor, padding: Padding) -> Tensor:
    """Rows of real tokens, of a tensor whose first dimensions are batch and tokens."""
    return tensor_BN.flatten(0, 1) if padding == "none" else tensor_BN[real_tokens(padding)]


def largest_error(
    entry: Entry,
    model: nn.Module,
    padding: Padding,
    read: Callable[[nn.Module, int], ValueProjection] = value_projection,
) -> float:
    """Over all layers, the largest difference at a real token, relative to the largest entry of the branch."""
    seen = watch_all(model, entry.batch(padding))
    assert sorted(seen.maps) == list(range(1, entry.calls + 1))
    errors = []
    for layer, block in enumerate(seen.blocks, start=1):
        rebuilt = read(model, block).attention_output(seen.maps[layer], seen.sites[layer, "normed"])
        wanted = at_real(seen.sites[layer, "attention"], padding)
        errors.append(((at_real(rebuilt, padding) - wanted).abs().max() / wanted.abs().max()).item())
    return max(errors)
