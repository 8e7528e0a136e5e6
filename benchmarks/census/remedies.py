"""Whether remedies do nothing where they should, something where they should, leak nothing and are undone."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.census import finder
from benchmarks.census.finder import Stack
from benchmarks.census.library import asked
from benchmarks.census.truth import Answer
from benchmarks.census.weights import patterns


def _outputs(model: nn.Module, batch: Mapping[str, Any]) -> list[Tensor]:
    torch.manual_seed(7)
    with torch.no_grad():
        out = model(**batch)
    return [one.detach().clone() for _, one in finder.tensors_in(out) if one.is_floating_point()]


def _furthest(before: list[Tensor], after: list[Tensor]) -> float:
    if len(before) != len(after) or any(a.shape != b.shape for a, b in zip(before, after, strict=False)):
        return float("inf")
    gaps = [float((a - b).abs().nan_to_num().max()) for a, b in zip(before, after, strict=True) if a.numel()]
    return max(gaps, default=0.0)


def later_changed(batch: Mapping[str, Any], field: str) -> tuple[dict[str, Any], int]:
    """The batch with one token in the first sequence changed, and its place."""
    ids = batch[field].clone()
    place = ids.shape[1] - 3
    ids[0, place] = ids[0, place - 1] if ids[0, place] != ids[0, place - 1] else ids[0, 0]
    if torch.equal(ids, batch[field]):
        ids[0, place] += 1
    return {**batch, field: ids}, place


def causal_stacks(model: nn.Module, batch: Mapping[str, Any], stacks: list[Stack]) -> dict[Any, tuple[str, int]]:
    """Stacks in which a later token changes nothing before it, with the field of ids and the place that is changed."""
    found = {}
    for field in ("decoder_input_ids", "input_ids"):
        if field not in batch or not isinstance(batch[field], Tensor) or batch[field].ndim != 2:
            continue
        other, place = later_changed(batch, field)
        moved = {stack.key: stack for stack in finder.find(model, other)}
        for stack in stacks:
            new = moved.get(stack.key)
            if (
                new is None
                or len(stack.shape) != 3
                or stack.shape[:2] != tuple(batch[field].shape)
                or stack.key in found
            ):
                continue
            gap = (new.values[-1] - stack.values[-1]).abs()
            if float(gap[0, place:].max()) > 1e-6 and float(gap[0, :place].max()) < 1e-6:
                found[stack.key] = (field, place)
    return found


def _leaks(model: nn.Module, batch: Mapping[str, Any], causal: Mapping[Any, tuple[str, int]]) -> str:
    """Whether a later token now changes an earlier one; stacks are looked for anew, for a remedy may change them."""
    if not causal:
        return "not causal"
    for key, (field, place) in causal.items():
        other, _ = later_changed(batch, field)
        before = {stack.key: stack for stack in finder.find(model, batch)}.get(key)
        after = {stack.key: stack for stack in finder.find(model, other)}.get(key)
        if before is None or after is None:
            return "stack not seen"
        gap = (after.values[-1] - before.values[-1]).abs()
        size = float(before.values[-1].abs().max())
        if float(gap[0, :place].max()) > 1e-5 * max(size, 1.0):
            return "leaks"
    return "no leak"


def ask_remedies(model: nn.Module, batch: Mapping[str, Any], stacks: list[Stack]) -> Answer:
    """Each remedy: its neutral setting, an active one, the future, and undoing it."""
    import unsmooth

    base = _outputs(model, batch)
    again = _furthest(base, _outputs(model, batch))
    causal = causal_stacks(model, batch, stacks)
    answer: Answer = {"causal": sorted({key[0] for key in causal})}
    if again > 0:
        answer["noise"] = again
    weights = {name: one.detach().clone() for name, one in model.state_dict().items()}
    for name, neutral, active in (
        ("deescalate", {"tau": 0.0}, {"tau": 0.5}),
        ("layerscale", {"start": 1.0}, {"start": 0.5}),
        ("sharpen", None, {}),
    ):
        one: Answer = {}
        if neutral is not None:
            said, _ = asked(lambda name=name, given=neutral: unsmooth.apply(model, name, batch=batch, **given))
            one["said"] = said
            if said == "done":
                said, new = asked(lambda: _outputs(model, batch))
                one["neutral"] = _furthest(base, new) if said == "done" else said
                asked(lambda: unsmooth.undo(model))
        said, _ = asked(lambda name=name, active=active: unsmooth.apply(model, name, batch=batch, **active))
        one["said"] = said
        if said == "done":
            one["left"] = [stack.paths[0] for stack in stacks if not _has_remedy(model, stack)]
            said, new = asked(lambda: _outputs(model, batch))
            one["changes"] = _furthest(base, new) if said == "done" else said
            one["leak"] = _leaks(model, batch, causal) if said == "done" and name != "layerscale" else "not asked"
            if name == "sharpen":
                one["eigenvalues"] = asked(lambda: _eigenvalues(model, stacks))[1]
            said, _ = asked(lambda: unsmooth.undo(model))
            state = model.state_dict()
            same = set(state) == set(weights) and all(_equal(state[key], weights[key]) for key in weights)
            one["undone"] = said == "done" and same and _furthest(base, _outputs(model, batch)) <= again
            if one["undone"] and len(one["left"]) == len(stacks):
                one["said"] = "refused: it is applied, with a warning, to stacks alone that this batch does not run"
        answer[name] = one
    return answer


def _has_remedy(model: nn.Module, stack: Stack) -> bool:
    return any("unsmooth" in dict(model.get_submodule(path).named_children()) for path in stack.paths)


def _equal(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and bool(
        ((one == other) | (one.isnan() & other.isnan())).all() if one.is_floating_point() else (one == other).all()
    )


def _eigenvalues(model: nn.Module, stacks: list[Stack]) -> list[float]:
    """Smallest and largest real part of eigenvalues of value times output weights, in a block of each stack."""
    from unsmooth.models import value_projection

    # In double, for those that are nearly all zero and far from symmetric; a gain is in the sum already.
    exact = copy.deepcopy(model).double().eval()
    every = []
    for stack in (one for one in stacks if _has_remedy(model, one)):  # the others were left out, with a warning
        hint = None if len(stacks) == 1 else (patterns([stack]) or [None])[0]
        first = list(dict.fromkeys(stack.paths)).index(stack.paths[stack.attends.index(True)])
        every.append(torch.linalg.eigvals(value_projection(exact, first, blocks=hint).summed()).real)
    found = torch.cat(every)
    return [float(found.min()), float(found.max())]
