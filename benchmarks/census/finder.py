"""Stacks of attention blocks, found by the values of tensors in one forward pass; no class name is read.

A stack is a run of at least two calls of sibling modules, attention among them, in which what each call hands on is
what the next one is handed, at one shape. This is the census's own reading; it shares nothing with the library that it
judges.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from inspect import signature
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

FUSED = (
    "scaled_dot_product",
    "_flash_attention",
    "_efficient_attention",
    "flex_attention",
    "multi_head_attention",
    "transformer_encoder_layer",
)
Slot = str


@dataclass
class Call:
    """One call of one module."""

    path: str
    kind: type
    number: int
    enclosing: int
    inputs: dict[Slot, Tensor]
    outputs: dict[Slot, Tensor] = field(default_factory=dict)
    attends: bool = False
    ended: bool = False


@dataclass(frozen=True)
class Link:
    """How a stream goes from one call to the next."""

    output: Slot
    is_touched: bool


@dataclass(frozen=True)
class Stack:
    """A run of calls with the stream that runs through it.

    Args:
        path: What the paths of its modules share.
        paths: Of the modules called, in order.
        calls: Numbers of the calls.
        slot: The argument that the stream is handed in by.
        output: The part of what a call returns that is the stream.
        values: What enters the first call, then what each hands on.
        attends: For each call, whether there is attention in it.
        touched: Layers after which the stream is changed before the next call.
        enclosing: Number of the call from within which these are made.
        masks: Arguments of the first call that may say which tokens there are.
        reshaped: What enters the call before the first in their list, and what it hands on, where those have another
            shape and this has that of the stream: a block of a stage of its own.
        halves: Of rows that attend or do not by turns (half-layers), the stream before each of them and after the last.
    """

    path: str
    paths: tuple[str, ...]
    calls: tuple[int, ...]
    slot: Slot
    output: Slot
    values: tuple[Tensor, ...]
    attends: tuple[bool, ...]
    touched: tuple[int, ...]
    enclosing: int
    masks: tuple[Tensor, ...] = ()
    place: int = 0
    reshaped: tuple[Tensor, ...] = ()
    halves: tuple[Tensor, ...] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the stream."""
        return tuple(self.values[0].shape)

    @property
    def key(self) -> tuple[str, Slot, int]:
        """What tells it from the other stacks of a pass."""
        return self.path, self.slot, self.place


def tensors_in(thing: Any, at: str = "") -> Iterator[tuple[str, Tensor]]:
    """Every tensor in nested containers, with where it is."""
    if isinstance(thing, Tensor):
        yield at, thing
    elif isinstance(thing, Mapping):
        for key, one in thing.items():
            yield from tensors_in(one, f"{at}.{key}")
    elif isinstance(thing, list | tuple):
        for number, one in enumerate(thing):
            yield from tensors_in(one, f"{at}[{number}]")
    elif hasattr(thing, "__dataclass_fields__"):
        for key in thing.__dataclass_fields__:
            yield from tensors_in(getattr(thing, key, None), f"{at}.{key}")


class _Attention(TorchDispatchMode):
    """Calls `found` whenever attention is computed: a fused kernel, or a softmax and then a product of matrices.

    Both are in one module, or the product is of what the softmax gave: a router's softmax is followed by neither.
    Deformable attention (Zhu et al. 2021, arXiv 2010.04159) has no product: what it weighs it reads off a grid.
    """

    def __init__(self, found: Callable[[], None], running: Callable[[], list[int]]) -> None:
        super().__init__()
        self.found, self.running = found, running
        self.maps: list[tuple[int, int, int, int]] = []

    def innermost(self) -> int:
        """The call that runs, and no other within it."""
        return self.running()[-1]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func.name()
        if any(word in name for word in FUSED):
            self.found()
        elif "softmax" in name and isinstance(out, Tensor) and out.ndim >= 3:
            self.maps.append((self.innermost(), out.numel(), *out.shape[-2:]))
        elif "grid_sampler" in name and self.maps and self.maps[-1][0] in self.running():
            self.found()
        elif name in ("aten::bmm", "aten::mm", "aten::baddbmm") and self.maps:
            factors = [one for one in args[:3] if isinstance(one, Tensor) and one.ndim >= 2]
            here = name != "aten::mm" and any(module == self.innermost() for module, *_ in self.maps[-4:])
            if here or any(self._is_map(one) for one in factors):
                self.found()
        return out

    def _is_map(self, one: Tensor) -> bool:
        rows, columns, count = one.shape[-2], one.shape[-1], one.numel()
        return any(
            (count == numel and {rows, columns} == {queries, keys})
            # Sinks are a column that goes again.
            or (count == numel // max(keys, 1) * (keys - 1) and (rows, columns) == (queries, keys - 1))
            for _, numel, queries, keys in self.maps[-4:]
        )


class Recorder:
    """What every module of a model is handed and hands on, in one forward pass."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.calls: list[Call] = []
        self.running: list[Call] = []

    def run(self, batch: Mapping[str, Any], call: Callable[..., Any] | None = None) -> list[Call]:
        """All calls of a forward pass, in the order in which they begin.

        Without a cache, as in training: with one, FSMT leaves out its decoder's causal mask.
        """
        plain = {"use_cache": False} if call is None and "use_cache" in signature(self.model.forward).parameters else {}
        names = {module: path for path, module in self.model.named_modules()}
        handles = []
        for module, path in names.items():
            handles.append(module.register_forward_pre_hook(self._enter(path), with_kwargs=True))
            handles.append(module.register_forward_hook(self._leave(), with_kwargs=True))
        try:
            # Some draw the order of patches (ViLT), which is no effect of what was changed from one pass to the next.
            watching = _Attention(self._mark, lambda: [-1, *(call.number for call in self.running)])
            with torch.random.fork_rng(), torch.no_grad(), watching:
                torch.manual_seed(0)
                (call or self.model)(**{**plain, **batch})
        finally:
            for handle in handles:
                handle.remove()
        return self.calls

    def _mark(self) -> None:
        for call in self.running:
            call.attends = True

    def _kept(self, thing: Any) -> dict[Slot, Tensor]:
        with torch.utils._python_dispatch._disable_current_modes():
            return {
                at: one.detach().clone()
                for at, one in tensors_in(thing)
                if one.ndim >= 2 and one.numel() > 1 and one.numel() < 4_000_000
            }

    def _enter(self, path: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, kwargs: Any) -> None:
            enclosing = self.running[-1].number if self.running else -1
            call = Call(path, type(module), len(self.calls), enclosing, self._kept({**dict(enumerate(args)), **kwargs}))
            self.calls.append(call)
            self.running.append(call)

        return hook

    def _leave(self) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            call = self.running.pop()
            call.outputs = self._kept(output)
            call.ended = True

        return hook


def same(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are equal in every bit."""
    return one.shape == other.shape and one.dtype == other.dtype and torch.equal(one, other)


def _list_of(path: str) -> str:
    """The list that a module is in: its path without the numbers at the end, or its parent's."""
    words = path.split(".")
    if not words[-1].isdigit():
        return ".".join(words[:-1]) + "/"
    while words and words[-1].isdigit():
        words.pop()
    return ".".join(words)


def _runs(group: list[Call], loose: bool) -> Iterator[tuple[list[Call], Slot, list[Link]]]:
    """Longest runs of calls through which one argument is a stream."""
    slots = dict.fromkeys(slot for call in group for slot, one in call.inputs.items() if one.is_floating_point())
    for slot in slots:
        run: list[Call] = []
        links: list[Link] = []
        for call in group:
            link = None
            if run and slot in call.inputs:
                link = _link(run[-1], call, slot, links[-1].output if links else None, loose)
            if link is not None:
                run.append(call)
                links.append(link)
                continue
            if len(run) > 1:
                yield run, slot, links
            run, links = ([call] if slot in call.inputs else []), []
        if len(run) > 1:
            yield run, slot, links


def _link(before: Call, after: Call, slot: Slot, output: Slot | None, loose: bool) -> Link | None:
    stream = after.inputs[slot]
    entered = before.inputs[slot]
    if stream.ndim < 2 or entered.shape != stream.shape:
        return None
    for name, one in before.outputs.items():
        if output in (None, name) and same(one, stream) and not same(one, entered):
            return Link(name, is_touched=False)
    # Something is added to the stream at some places, or padding set to zero, between two blocks of one list.
    for name, one in before.outputs.items():
        if output not in (None, name) or one.shape != stream.shape or same(one, entered):
            continue
        equal = (one == stream).all(-1).float().mean()
        near = loose or _is_near(stream, one, entered)
        if equal >= 0.2 or (_follows(before, after) and near):
            return Link(name, is_touched=True)
    return None


def _follows(before: Call, after: Call) -> bool:
    """Whether a module is the next one of its list."""
    one, other = before.path.rsplit(".", 1)[-1], after.path.rsplit(".", 1)[-1]
    return one.isdigit() and other.isdigit() and int(other) == int(one) + 1 and before.kind is after.kind


def _is_near(stream: Tensor, output: Tensor, entered: Tensor) -> bool:
    """Whether what is read is what was handed on with something small added, rather than what was read before."""
    gap = float((stream - output).norm())
    return gap < 0.7 * float(output.norm()) and gap < float((stream - entered).norm())


def stacks_in(calls: list[Call], loose: bool = False) -> list[Stack]:
    """Every stack of a forward pass, in the order in which they begin; none lies inside a block of another.

    With `loose` whatever is done to the stream between a block and the next one of its list, such as a norm of the sum
    with another tower's: values do not show whether that is one stream, so it counts only where a scan's note says so.
    """
    groups: dict[tuple[int, str], list[Call]] = {}
    for call in calls:
        if call.ended and call.path:
            groups.setdefault((call.enclosing, _list_of(call.path)), []).append(call)
    found = []
    for (enclosing, path), group in groups.items():
        for run, slot, links in _runs(group, loose):
            attends = [call.attends for call in run]
            if not any(attends) or (path.endswith("/") and (not all(attends) or len({call.kind for call in run}) > 1)):
                # Parts of a block are no list of blocks.
                continue
            output = links[-1].output
            if output not in run[-1].outputs or run[-1].outputs[output].shape != run[0].inputs[slot].shape:
                if not all(attends[:-1]) or len(run) < 3:
                    continue
                run, links = run[:-1], links[:-1]
            values = (run[0].inputs[slot], *(call.outputs[output] for call in run))
            if run[0].inputs[slot].ndim == 2 and run[0].inputs[slot].shape[0] < 4:
                continue
            found.append(
                Stack(
                    path=path,
                    paths=tuple(call.path for call in run),
                    calls=tuple(call.number for call in run),
                    slot=slot,
                    output=output,
                    values=values,
                    attends=tuple(attends),
                    touched=tuple(layer for layer, link in enumerate(links, 1) if link.is_touched),
                    enclosing=enclosing,
                    masks=tuple(one for call in run for one in call.inputs.values() if _may_be_mask(one)),
                    reshaped=_reshaped(group, run[0], slot, output),
                )
            )
    return _outermost(_distinct([*found, *_rows(calls)]), calls)


def _reshaped(group: list[Call], first: Call, slot: Slot, output: Slot) -> tuple[Tensor, ...]:
    at = group.index(first)
    before = group[at - 1] if at else None
    if before is None or not before.attends or slot not in before.inputs or output not in before.outputs:
        return ()
    entered, left = before.inputs[slot], before.outputs[output]
    alike = left.shape == first.inputs[slot].shape and entered.ndim == left.ndim
    return (entered, left) if alike and entered.shape != left.shape else ()


def _rows(calls: list[Call]) -> Iterator[Stack]:
    """Stacks without a module for a block: rows of a list that is never called, in which parts are, residuals outside.

    A block begins where a row attends. The stream before it is what the first part of that row reads; after the last,
    what     the next part behind the list reads.
    """
    called = {call.path for call in calls}
    rows: dict[tuple[int, str], dict[str, list[Call]]] = {}
    for call in calls:
        words = call.path.split(".")
        for at in range(1, len(words)):
            path = ".".join(words[:at])
            above = [".".join(words[:upto]) for upto in range(1, at + 1)]
            inner = calls[call.enclosing].path if call.enclosing >= 0 else ""
            if (
                words[at - 1].isdigit()
                and path not in called
                and all(one in inner or one not in called for one in above)
            ):
                rows.setdefault((call.enclosing, ".".join(words[: at - 1])), {}).setdefault(path, []).append(call)
                break
    for (enclosing, path), row in rows.items():
        begins = [parts[0] for parts in row.values() if any(part.attends for part in parts)]
        if len(begins) < 2:
            continue
        entered = [next((one for one in call.inputs.values() if one.is_floating_point()), None) for call in begins]
        last = max(part.number for parts in row.values() for part in parts)
        behind = [call for call in calls[last + 1 :] if call.enclosing == enclosing]
        ends = [*(one for call in behind for one in call.inputs.values())]
        ends += list(calls[enclosing].outputs.values()) if enclosing >= 0 else []
        first = entered[0]
        if any(one is None or first is None or one.shape != first.shape or one.ndim != 3 for one in entered):
            continue
        end = next((one for one in ends if first is not None and one.shape == first.shape), None)
        if end is None:
            continue
        values = (*(one for one in entered if one is not None), end)
        if any(same(one, other) for one, other in pairwise(values)):
            continue
        each = [
            next((one for one in parts[0].inputs.values() if one.is_floating_point()), None) for parts in row.values()
        ]
        halves = tuple(one for one in each if one is not None and one.shape == end.shape)
        yield Stack(
            halves=(*halves, end) if len(halves) > len(begins) else (),
            path=path, paths=tuple(call.path for call in begins), calls=tuple(call.number for call in begins),
            slot="rows", output="rows", values=values, attends=(True,) * len(begins), touched=(), enclosing=enclosing,
        )  # fmt: skip


def _distinct(found: list[Stack]) -> list[Stack]:
    """One of each: where queries, keys and values are handed in apart, the stream is the first of them."""
    kept: list[Stack] = []
    for stack in found:
        if not any(
            one.enclosing == stack.enclosing and one.output == stack.output and {*one.calls} & {*stack.calls}
            for one in kept
        ):
            kept.append(stack)
    return kept


def _may_be_mask(one: Tensor) -> bool:
    if one.dtype == torch.bool:
        return True
    flat = one.reshape(-1)
    if one.is_floating_point():
        return bool(((flat == 0) | (flat <= torch.finfo(one.dtype).min / 4)).all() or ((flat == 0) | (flat == 1)).all())
    return bool(((flat == 0) | (flat == 1)).all())


def _outermost(found: list[Stack], calls: list[Call]) -> list[Stack]:
    """Those that are in no call of another stack."""
    within = {number for stack in found for number in stack.calls}

    def is_inside(stack: Stack) -> bool:
        above = stack.enclosing
        while above >= 0:
            if above in within:
                return True
            above = calls[above].enclosing
        return False

    outer = sorted((stack for stack in found if not is_inside(stack)), key=lambda stack: stack.calls[0])
    return [replace(stack, place=place) for place, stack in enumerate(outer)]


def find(model: nn.Module, batch: Mapping[str, Any], loose: bool = False) -> list[Stack]:
    """The stacks of a model, by one forward pass."""
    return stacks_in(Recorder(model).run(batch), loose)


# Curves ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Layout:
    """How a stream's dimensions are read: which counts sequences and which is the width."""

    sequences: int
    kind: str

    def tokens(self, value: Tensor) -> np.ndarray:
        """(sequences, tokens, dim) in float64."""
        x = value.detach().to(torch.float64).numpy()
        if self.kind == "sequence first":
            x = np.swapaxes(x, 0, 1)
        elif self.kind == "places, width last":
            x = x.reshape(x.shape[0], -1, x.shape[-1])
        elif self.kind == "places, width second":
            x = np.moveaxis(x, 1, -1)
            x = x.reshape(x.shape[0], -1, x.shape[-1])
        elif self.kind == "streams side by side":
            x = x.reshape(*x.shape[:2], -1)
        elif self.kind == "streams side by side, first":
            x = np.moveaxis(x, 0, 2)
            x = x.reshape(*x.shape[:2], -1)
        elif self.kind == "one of several streams":
            x = x[0]
        elif self.kind == "packed":
            x = x.reshape(self.sequences, -1, x.shape[-1])
        return x


def layout_of(stack: Stack, model: nn.Module, sequences: int, tokens: int | None = None) -> Layout | None:
    """How a stack's stream is laid out; None where that cannot be said.

    Args:
        stack: A stack of the model.
        model: The model.
        sequences: How many are in the batch.
        tokens: How many ids each has, where there are ids: what follows them is no place of a picture.
    """
    shape = stack.shape
    if len(shape) == 4 and shape[0] != sequences and shape[1] == sequences:
        return Layout(sequences, "streams side by side, first")
    if len(shape) == 4 and shape[:2] == (sequences, tokens):
        return Layout(sequences, "streams side by side")
    if len(shape) == 4:
        sizes = [one.numel() for one in model.get_submodule(stack.paths[0]).parameters() if one.ndim == 1]
        last, second = sizes.count(shape[-1]), sizes.count(shape[1])
        kind = "places, width last" if last >= second else "places, width second"
        return Layout(shape[0], kind)
    if len(shape) == 3:
        if shape[0] % sequences == 0:
            return Layout(shape[0], "batch first")
        if shape[1] == sequences:
            return Layout(shape[1], "sequence first")
        if shape[0] == 1 and shape[1] % sequences == 0:
            return Layout(sequences, "packed")
        return None
    if len(shape) == 2 and shape[0] % sequences == 0:
        return Layout(sequences, "packed")
    return None


def other_layouts(layout: Layout) -> dict[str, Layout]:
    """Readings that are as honest, by what they read."""
    if layout.kind == "packed":
        return {"all sequences as one": Layout(1, "packed")}
    return {}


def token_similarity(x_ND: np.ndarray) -> float:
    """n|mean|²/Σ|x|² of one sequence."""
    mean = x_ND.mean(0)
    if not x_ND.any():  # all alike: the measure says so in its documentation, and a scan in a note
        return 1.0
    return float(len(x_ND) * (mean @ mean) / (x_ND * x_ND).sum())


def mean_cosine(x_ND: np.ndarray) -> float:
    """Mean cosine over pairs of different tokens of one sequence."""
    unit = x_ND / np.maximum(np.linalg.norm(x_ND, axis=1, keepdims=True), 1e-300)
    total, n = unit.sum(0), len(x_ND)
    return float((total @ total - (unit * unit).sum()) / (n * (n - 1)))


def curve(values: list[np.ndarray], real: np.ndarray) -> dict[str, list[float]]:
    """Both measures at each layer, means over sequences of their values over real tokens."""
    found: dict[str, list[float]] = {"token_similarity": [], "mean_cosine": []}
    for x_BND in values:
        rows = [x[keep] for x, keep in zip(x_BND, real, strict=True) if keep.sum() > 1]
        if not rows:  # one token is like no other
            found = {name: [*ones, float("nan")] for name, ones in found.items()}
            continue
        found["token_similarity"].append(float(np.mean([token_similarity(x) for x in rows])))
        found["mean_cosine"].append(float(np.mean([mean_cosine(x) for x in rows])))
    return found
