"""Which stacks of the library are which of the finder, and whether its numbers are right."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from torch import nn

from benchmarks.census import finder
from benchmarks.census.finder import Stack
from benchmarks.census.library import MEASURES, asked, curves_of, scan
from benchmarks.census.truth import Answer, inner

NEAR = 1e-4


def _agree(ours: Mapping[str, list[float]], theirs: Mapping[str, list[float]]) -> bool:
    return all(
        len(ours[name]) == len(theirs[name])
        and np.allclose(ours[name], theirs[name], atol=NEAR, rtol=0, equal_nan=True)
        for name in MEASURES
    )


def _families(truths: list[Answer]) -> list[list[int]]:
    """Stacks that may be one: each alone, then runs of those whose paths differ in numbers alone (stages)."""
    alone = [[number] for number, one in enumerate(truths) if "curve" in one]
    by_path: dict[str, list[int]] = {}
    for number, one in enumerate(truths):
        if "curve" in one:
            by_path.setdefault(re.sub(r"\d+", "*", one["stack"].path), []).append(number)
    return alone + [group for group in by_path.values() if len(group) > 1]


def _joined(truths: list[Answer], group: list[int]) -> list[dict[str, list[float]]]:
    """The curve of stages as one stack: what enters is there at the first alone, or at every stage."""
    if len(group) == 1:
        return [truths[group[0]]["curve"]]
    curves = [truths[number]["curve"] for number in group]
    short = {name: curves[0][name] + [one for curve in curves[1:] for one in curve[name][1:]] for name in MEASURES}
    long = {name: [one for curve in curves for one in curve[name]] for name in MEASURES}
    return [short, long]


def match(
    theirs: Mapping[str, Mapping[str, list[float]]], truths: list[Answer]
) -> tuple[dict[str, list[int]], list[str]]:
    """Which stacks of the library are which of ours, and which are none of ours."""
    found: dict[str, list[int]] = {}
    odd = []
    for name, curve in theirs.items():
        fitting = next(
            (group for group in _families(truths) if any(_agree(ours, curve) for ours in _joined(truths, group))), None
        )
        fitting = fitting or _by_another_reading(curve, truths)
        if fitting is None:
            odd.append(name)
        else:
            found[name] = fitting
    return found, odd


def _by_another_reading(curve: Mapping[str, list[float]], truths: list[Answer]) -> list[int] | None:
    """A stack that is right by another reading, which is its truth from here on."""
    for number, one in enumerate(truths):
        for name, other in one.get("others", {}).items():
            if _agree(other["curve"], curve):
                if "group" in other:
                    group: list[int] = other["group"]
                    return group
                one |= other
                one["about"]["read as"] = name
                return [number]
    return None


def _is_named(stack: Stack, notes: str) -> bool:
    """Whether a note speaks of a stack: by its path, or by a part of it that says which it is."""
    words = [word for word in re.split(r"[./]", stack.path) if len(word) > 3 and not word.isdigit()]
    common = {"layers", "layer", "blocks", "block", "model", "transformer"}
    return stack.path.rstrip("/") in notes or any(
        re.search(rf"\b{re.escape(word)}", notes) for word in words if word not in common
    )


def ask_scan(
    model: nn.Module, data: Any, truths: list[Answer], loose: Callable[[], list[Answer]] = lambda: []
) -> Answer:
    """The verdict about a scan without a hint: are all stacks there, or named, and right at every layer.

    `loose` gives the curves of what each block hands on where something is done in between, whatever it is: a reader
    whom a note tells so reads those numbers as they are.
    """
    said, scanned = asked(lambda: scan(model, data))
    if scanned is None:
        return {"verdict": said.split(":", 1)[0], "reason": said.split(": ", 1)[1]}
    theirs = curves_of(scanned)
    found, odd = match(theirs, truths)
    notes = " ".join(map(str, scanned.notes))
    for one in loose() if odd and "between the blocks at" in notes else []:
        for name in [name for name in odd if f"between the blocks at '{one['about']['path']}.*'" in notes]:
            if "curve" in one and _agree(one["curve"], theirs[name]):
                odd.remove(name)
                found[name] = [len(truths)]
                truths.append({**one, "about": {**one["about"], "read as": "what each block hands on, as a note says"}})
    matched = {number for group in found.values() for number in group}
    missing = [
        one["about"]["path"]
        for number, one in enumerate(truths)
        if number not in matched and not _is_named(one["stack"], notes)
    ]
    named = [
        one["about"]["path"]
        for number, one in enumerate(truths)
        if number not in matched and _is_named(one["stack"], notes)
    ]
    answer: Answer = {
        "notes": list(map(str, scanned.notes)),
        "found": found,
        "named": named,
    }
    if odd:
        judged = [one for one in truths if "curve" in one]
        answer["reason"] = "; ".join(_difference(name, theirs[name], judged) for name in odd)
        answer["verdict"] = "wrong"
    elif missing:
        answer["reason"] = f"left out: {', '.join(missing)}"
        answer["verdict"] = "left out"
    else:
        answer["verdict"] = "right"
    return answer


def _difference(name: str, curve: Mapping[str, list[float]], truths: list[Answer]) -> str:
    """How far a curve is from the nearest of ours."""
    layers = len(curve[MEASURES[0]])
    same = [one for one in truths if len(one["curve"][MEASURES[0]]) == layers]
    if not same:
        have = ", ".join(f"{one['about']['path']} {len(one['curve'][MEASURES[0]])}" for one in truths)
        return f"{name or 'the stack'}: {layers} layers, where there are {have}"

    def gaps(one: Answer) -> np.ndarray:
        pairs = [(np.array(curve[metric]), np.array(one["curve"][metric])) for metric in MEASURES]
        return np.max([np.where(np.isnan(a) & np.isnan(b), 0, np.abs(a - b)) for a, b in pairs], axis=0)

    nearest = min(same, key=lambda one: float(np.nan_to_num(gaps(one), nan=9.0).max()))
    worst = np.nan_to_num(gaps(nearest), nan=9.0)
    return (
        f"{name or 'the stack'}: off by {worst.max():.2g} at layer {int(worst.argmax())} of {nearest['about']['path']}"
    )


def ask_padding(
    model: nn.Module, batch: Mapping[str, Any], other: Mapping[str, Any] | None, truths: list[Answer]
) -> str:
    """Whether what stands in padding changes the numbers."""
    if other is None or inner(batch) is not batch:
        return "no padding"
    one, first = asked(lambda: scan(model, dict(batch)))
    two, second = asked(lambda: scan(model, dict(other)))
    if first is None or second is None:
        return two if first is not None else one
    before, after = curves_of(first), curves_of(second)
    for name, curve in before.items():
        if name not in after or any(not np.allclose(curve[m], after[name][m], atol=1e-5, rtol=0) for m in MEASURES):
            found = {stack.key: stack for stack in finder.find(model, other)}
            for one_truth in truths:
                moved = found.get(one_truth["stack"].key)
                if moved is None or "curve" not in one_truth:
                    continue
                values = [one_truth["layout"].tokens(value) for value in moved.values]
                again = finder.curve(values, one_truth["real"])
                if any(not np.allclose(again[m], one_truth["curve"][m], atol=1e-5, rtol=0) for m in MEASURES):
                    return "the model itself reads padding"
            return f"changed: {name or 'the stack'}"
    return "unchanged"
