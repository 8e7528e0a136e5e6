"""The right curve of each stack, and which of its tokens count: what the library is judged by."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.census import finder
from benchmarks.census.finder import Call, Layout, Stack

Answer = dict[str, Any]


def inner(batch: Mapping[str, Any]) -> Mapping[str, Any]:
    """The fields, where a model takes them as one dict."""
    (only, *others) = batch.values()
    return only if not others and isinstance(only, Mapping) else batch


def masks_of(batch: Mapping[str, Any]) -> list[str]:
    """Fields that mark padding, and do mark some; those that say where images are put are about places, not padding."""
    batch = inner(batch)
    return [
        name
        for name, mask in batch.items()
        if isinstance(mask, Tensor)
        and "mask" in name
        and "position" not in name
        and mask.ndim == 2
        and not bool((mask != 0).all())
    ]


def changed_padding(batch: Mapping[str, Any], only: list[str] | None = None) -> dict[str, Any] | None:
    """The batch with other values wherever a mask marks padding; None where no mask marks any."""
    outer, batch = batch, inner(batch)
    new = dict(batch)
    changed = False
    for name in masks_of(batch) if only is None else only:
        mask = batch[name]
        for field, value in batch.items():
            if field == name or not isinstance(value, Tensor) or value.shape[0] != mask.shape[0]:
                continue
            if field in ("mm_token_type_ids", "bbox", "token_type_ids", "position_ids") or "mask" in field:
                continue
            if field.startswith("decoder") != name.startswith("decoder"):
                continue
            axis = next((axis for axis in range(1, value.ndim) if value.shape[axis] == mask.shape[1]), None)
            if axis is None:
                continue
            where = (mask == 0).reshape(
                mask.shape[0], *(mask.shape[1] if at == axis else 1 for at in range(1, value.ndim))
            )
            # Another id of the batch, so that none is special.
            other = value.flip(0) if value.is_floating_point() else value.roll(1, 1)
            other = other + 1.0 if value.is_floating_point() else other
            if not value.is_floating_point():
                ordinary = value[mask != 0] if value.ndim == 2 else value
                other = ordinary.reshape(-1)[-1] * torch.ones_like(value)
                other = torch.where(other == value, ordinary.reshape(-1)[-2], other)
            new[field] = torch.where(where, other, value)
            changed = True
    if not changed:
        return None
    return new if outer is batch else dict.fromkeys(outer, new)


def truth(
    stack: Stack, model: nn.Module, batch: Mapping[str, Any], moved: Mapping[str, Mapping[Any, Stack]], sequences: int
) -> Answer:
    """The right curve of a stack, and which tokens count in it."""
    ids = inner(batch).get("input_ids")
    layout = finder.layout_of(
        stack, model, sequences, ids.shape[1] if isinstance(ids, Tensor) and ids.ndim == 2 else None
    )
    about: Answer = {
        "path": stack.path, "layers": len(stack.calls), "shape": list(stack.shape), "output": stack.output,
        "layout": layout.kind if layout else None, "attending": sum(stack.attends), "touched": list(stack.touched),
        "modules": len(set(stack.paths)),
    }  # fmt: skip
    if layout is None:
        return {"stack": stack, "layout": None, "about": about}
    values = [layout.tokens(one) for one in stack.values]
    real, how = _real_tokens(stack, layout, values[0], batch, moved)
    about |= {"real": int(real.sum()), "tokens": int(real.size), "mask": how}
    about["curve"] = {name: [round(one, 7) for one in found] for name, found in finder.curve(values, real).items()}
    others: dict[str, Answer] = {}
    if stack.halves:
        halves = finder.curve([layout.tokens(one) for one in stack.halves], real)
        others["each row of the list a layer"] = {"layout": layout, "real": real, "curve": halves}
    for name, other in finder.other_layouts(layout).items():
        read = [other.tokens(one) for one in stack.values]
        all_real = np.ones(read[0].shape[:2], dtype=bool)
        others[name] = {"layout": other, "real": all_real, "curve": finder.curve(read, all_real)}
    others |= {
        name: {"layout": layout, "real": ends, "curve": finder.curve(values, ends)}
        for name, ends in _other_ends(real, how, batch).items()
    }
    others |= {
        f"by the model's lengths of {name}": {"layout": layout, "real": ends, "curve": finder.curve(values, ends)}
        for name, ends in _own_lengths(stack, model, real, batch).items()
    }
    if stack.reshaped and how == "none":
        # The library takes a block that makes fewer tokens for a stage, says so, and measures what each hands on.
        longer = [layout.tokens(one) for one in stack.reshaped]
        curves = [finder.curve([one], np.ones(one.shape[:2], dtype=bool)) for one in (*longer, *values[1:])]
        whole = {name: [one[name][0] for one in curves] for name in curves[0]}
        others["with the block before, of a stage of its own"] = {"layout": layout, "real": real, "curve": whole}
    curve = finder.curve(values, real)
    return {"stack": stack, "layout": layout, "real": real, "curve": curve, "others": others, "about": about}


def _other_ends(real: np.ndarray, how: str, batch: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Real tokens where a frame that touches padding counts, or where lengths are divided and rounded.

    A mask of sound is finer than the frames; models and libraries differ about the frame at the edge.
    """
    found = {}
    batch = inner(batch)
    count, tokens = real.shape
    for name in masks_of(batch):
        lengths = (batch[name] != 0).sum(1).double() * tokens / batch[name].shape[1]
        own = (batch[name] != 0).numpy()
        if own.shape == real.shape and not (real & ~own).any():
            # A token beside padding is real, though an embedding of three words at a time (MobileBERT) reads padding.
            found[f"{name}, as it is"] = own
        if how in ("none", "all") or batch[name].shape[1] <= tokens or batch[name].shape[0] != count:
            continue
        for way in (torch.ceil, torch.floor):
            ends = way(lengths).numpy()[:, None]
            found[f"{name}, {way.__name__}"] = np.arange(tokens)[None] < ends
    return found


def _own_lengths(stack: Stack, model: nn.Module, real: np.ndarray, batch: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Real tokens by what the model says that its convolutions make of so many samples.

    Its attention may see more of them: a mask that it thins out and then cuts off may lose its padding.
    """
    found = {}
    batch, (count, tokens) = inner(batch), real.shape
    above = stack.paths[0].split(".")
    for at in range(len(above)):
        lengths = getattr(model.get_submodule(".".join(above[:at])), "_get_feat_extract_output_lengths", None)
        for name in masks_of(batch) if lengths is not None else ():
            if batch[name].shape[0] != count or batch[name].shape[1] <= tokens:
                continue
            try:
                made = [lengths(one) for one in (*(batch[name] != 0).sum(1), torch.tensor(batch[name].shape[1]))]
            except AttributeError:  # some ask a configuration for what another part's has
                continue
            if not any(isinstance(one, tuple) for one in made) and int(made[-1]) == tokens:
                found[name] = np.arange(tokens)[None] < np.array([[int(one)] for one in made[:-1]])
    return found


def _real_tokens(
    stack: Stack,
    layout: Layout,
    entered: np.ndarray,
    batch: Mapping[str, Any],
    moved: Mapping[str, Mapping[Any, Stack]],
) -> tuple[np.ndarray, str]:
    """Tokens that are not padding: those that stay when padding is changed; else by the mask that blocks are handed."""
    everything = np.ones(entered.shape[:2], dtype=bool)
    batch = inner(batch)
    if not masks_of(batch):
        return everything, "none"
    # A mask as wide as the stack is about its tokens; of others (of samples, say) each may be.
    own = [name for name in moved if batch[name].shape[1] == everything.shape[1]]
    differs = np.zeros_like(everything)
    for name in own or moved:
        one = moved[name].get(stack.key)
        if one is not None and one.shape == stack.shape:
            differs |= np.abs(layout.tokens(one.values[0]) - entered).max(-1) > 1e-7
    if differs.any() and not differs.all(1).any():
        for name in moved:
            width = batch[name].shape[1]
            added = entered[:, width:]
            is_own = (
                not own
                and added.size
                and len(batch[name]) == len(differs)
                and (differs[:, :width] == (batch[name] == 0).numpy()).all()
            )
            if is_own and np.ptp(added, axis=0).max() < 1e-6:
                # The model fills windows up with tokens of its own.
                differs[:, width:] = True
        return ~differs, "by changing padding"
    count, tokens = everything.shape
    for mask in stack.masks:
        if mask.shape[0] != count or mask.shape[-1] != tokens or mask.numel() == count * tokens * stack.shape[-1]:
            continue
        seen = (
            mask
            if mask.dtype == torch.bool
            else (mask == 1)
            if bool((mask >= 0).all()) and bool((mask > 0).any())
            else mask == 0
        )
        keys = seen.reshape(count, -1, tokens).any(1).numpy()
        if not keys.all() and keys.any(1).all():
            return keys, "by the blocks' own mask"
    return everything, "all"


def add_stages(truths: list[Answer], calls: list[Call]) -> None:
    """The reading of a network of stages as one stack: every block of a class, at paths that differ in numbers alone.

    A stage of one block is no stack of its own, and neither are the blocks within a stage that is one itself (Swin2SR).
    """
    for first in truths:
        if "curve" not in first or first["about"]["mask"] not in ("none", "all"):
            continue
        stack: Stack = first["stack"]
        kinds = dict.fromkeys((_pattern(call.path), call.kind) for call in calls if _is_block_of(call, stack, calls))
        readings = {
            f"stages of {kind.__name__}": [one for one in calls if one.kind is kind and _pattern(one.path) == pattern]
            for pattern, kind in kinds
        }
        enclosing = {call.enclosing for call in calls}
        for pattern in dict.fromkeys(pattern for pattern, _ in kinds):
            # Of several classes by turns; a lone norm or convolution between two stages is none.
            every = [call for call in calls if call.number in enclosing and _pattern(call.path) == pattern]
            readings[f"all at {pattern}"] = every
        for name, blocks in readings.items():
            values = [vectors(blocks[0].inputs), *(vectors(call.outputs) for call in blocks)]
            alike = all(one is not None and one.ndim == len(stack.shape) for one in values)
            if len(blocks) <= len(stack.calls) or not alike:
                continue
            found: dict[str, list[float]] = {}
            for value in values:
                x_BND = first["layout"].tokens(value)
                for measure, [one] in finder.curve([x_BND], np.ones(x_BND.shape[:2], dtype=bool)).items():
                    found.setdefault(measure, []).append(one)
            group = [
                number
                for number, one in enumerate(truths)
                if any(_is_block_of(call, one["stack"], calls) for call in blocks)
            ]
            first["others"][name] = {"curve": found, "group": group, "blocks": blocks}


def _pattern(path: str) -> str:
    return re.sub(r"\d+", "*", path)


def _is_block_of(call: Call, stack: Stack, calls: list[Call]) -> bool:
    """Whether a call is one of a stack's, or is numbered too and attends within one of them."""
    above = call.number
    while above >= 0 and above not in stack.calls:
        above = calls[above].enclosing
    inner = call.path.rpartition(".")[2].isdigit() and call.attends
    return call.number in stack.calls or (above >= 0 and inner)


def vectors(tensors: Mapping[str, Tensor]) -> Tensor | None:
    """The first that may be a stream."""
    return next((one for one in tensors.values() if one.is_floating_point() and one.ndim > 2), None)


def static_agreement(model: nn.Module, calls: list[Call], stacks: list[Stack]) -> dict[str, bool]:
    """Whether each static convention of transformers names the blocks that were found, and no others."""
    called = {call.path for call in calls}
    ours = {frozenset(stack.paths) for stack in stacks}
    names = {path: module for path, module in model.named_modules() if path in called}
    try:
        from transformers.modeling_layers import GradientCheckpointingLayer
    except ImportError:
        return {}
    recorded: set[type] = set()
    whole: set[str] = set()
    for module in model.modules():
        for key, what in (getattr(module, "_can_record_outputs", None) or {}).items():
            if key == "hidden_states":
                for one in what if isinstance(what, list) else [what]:
                    kind = getattr(one, "target_class", one)
                    if isinstance(kind, type):
                        recorded.add(kind)
        whole |= set(getattr(module, "_no_split_modules", None) or ())
    rules: dict[str, Callable[[nn.Module], bool]] = {
        "checkpointed": lambda module: isinstance(module, GradientCheckpointingLayer),
        "recorded": lambda module: type(module) in recorded,
        "unsplit": lambda module: type(module).__name__ in whole,
    }
    agreed = {}
    for rule, fits in rules.items():
        groups: dict[str, set[str]] = {}
        for path, module in names.items():
            if fits(module):
                groups.setdefault(finder._list_of(path), set()).add(path)
        theirs = {frozenset(paths) for paths in groups.values()}
        agreed[rule] = ours <= theirs
    return agreed
