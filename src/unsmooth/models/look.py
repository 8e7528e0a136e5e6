"""How tokens pass through the blocks of a stack, seen in one pass with hooks that keep nothing but the last output.

A stack is verified by what its blocks do: they are called one after the other, and something that each hands on is what
the next is given. From that come which argument and which part of an output the tokens are, which axis is which, where
a stage ends, and whether there are two streams.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from unsmooth.models.hooks import Hooks
from unsmooth.models.stacks import Blocks, widths_of

# The way to a tensor among the arguments of a call, or in what it returns: numbers and names, outermost first.
Way = tuple[int | str, ...]
_DEEPEST = 3
# Added to a score it leaves nothing of it; biases of positions are nearer to zero.
_HIDDEN = -1000.0


@dataclass(frozen=True)
class Stream:
    """How the tokens of a stack pass through its blocks.

    Args:
        axes: Of the tensors: "BND", "NBD" (tokens first), "BDN", or "BPD" and "BDP" where places have several axes;
            "1ND" has the sequences of a batch in one row, "ND" too, and tells its blocks where each begins.
        rows: The way to that among the arguments of a block.
        each: Tokens of a sequence in such a row.
        enters: The way to the tokens among the arguments of a block; None for the first tensor.
        leaves: The way to them in what a block returns; None for the first tensor.
        stages: The stage of each block by its path; empty where the shape stays as it is.
        depth: How many blocks a pass calls; 0 where that is not known.
        altered: How often something was done to the tokens between one block and the next.
        ends: Whether some blocks may have none of these tokens.
        parts: Of blocks that are mere lists, which nobody calls: the first and the last part of each that is called.
        summed: Whether such a last part is added to what it was given.
        prefix: How many class tokens and registers stand in front of the patches of an image.
        beside: Whether it is a further stream of its blocks: what is found inside them is of the first.
    """

    axes: str = "BND"
    enters: Way | None = None
    leaves: Way | None = None
    stages: Mapping[str, int] = field(default_factory=dict)
    depth: int = 0
    altered: int = 0
    ends: bool = False
    each: int = 0
    parts: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    summed: bool = False
    prefix: int = 0
    rows: Way | None = None
    beside: bool = False

    def laid_out(self, tensor: Tensor, lengths: Sequence[int] = ()) -> Tensor:
        """The same as (batch, tokens, dim), where it has the axes of this stream; `lengths` of sequences in a row.

        >>> Stream("BDP").laid_out(torch.zeros(2, 8, 3, 4)).shape, Stream("NBD").laid_out(torch.zeros(5, 2, 8)).shape
        (torch.Size([2, 12, 8]), torch.Size([2, 5, 8]))
        """
        if lengths:
            return in_batch(tensor, lengths)
        if self.axes == "NBD":
            return tensor.transpose(0, 1)
        if self.axes == "1ND" and tensor.shape[1] % self.each == 0:
            return tensor.view(-1, self.each, tensor.shape[-1])
        if self.axes in ("BDN", "BDP"):
            return tensor.flatten(2).transpose(1, 2)
        return tensor.flatten(1, -2) if self.axes == "BPD" else tensor

    @property
    def is_plain(self) -> bool:
        """Whether blocks take their tokens first and hand them on first, as vectors along one axis throughout."""
        first = self.enters in (None, (0,), ("hidden_states",)) and self.leaves in (None, (), (0,))
        vectors = self.axes in ("BND", "NBD") or (self.rows is not None and self.axes in ("ND", "1ND"))
        return first and vectors and not (self.stages or self.parts)

    def fits(self, tensor: Tensor) -> bool:
        """Whether a tensor has as many axes as these tokens."""
        if tensor.is_nested or "P" in self.axes:
            return tensor.ndim > 3 and not tensor.is_nested
        return tensor.ndim == (2 if self.axes == "ND" else 3)


def tensors_in(value: Any, way: Way = ()) -> Iterator[tuple[Way, Tensor]]:
    """Every tensor in what a module is called with or returns, with the way to it.

    >>> [way for way, _ in tensors_in((torch.ones(1), {"mask": torch.ones(1), "cache": None}))]
    [(0,), (1, 'mask')]
    """
    if isinstance(value, Tensor):
        yield way, value
    elif len(way) < _DEEPEST and isinstance(value, Mapping):
        for name, one in value.items():
            yield from tensors_in(one, (*way, name))
    elif len(way) < _DEEPEST and isinstance(value, tuple | list):
        for number, one in enumerate(value):
            yield from tensors_in(one, (*way, number))


def at(value: Any, way: Way) -> Any:
    """What is at the end of a way; None where there is nothing."""
    for step in way:
        try:
            value = value[step]
        except (KeyError, IndexError, TypeError):
            return None
    return value


def argument(args: tuple[Any, ...], kwargs: Mapping[str, Any], way: Way) -> Any:
    """The same among arguments: those without a name have numbers."""
    return at(kwargs if isinstance(way[0], str) else args, way)


def lengths_in(value: Any, tokens: int) -> tuple[int, ...]:
    """The lengths of sequences in a row of so many tokens, from where each begins and the last ends; else nothing.

    >>> lengths_in(torch.tensor([0, 4, 6]), 6), lengths_in(torch.tensor([0, 1, 2]), 6)
    ((4, 2), ())
    """
    if not isinstance(value, Tensor) or value.ndim != 1 or value.is_floating_point() or len(value) < 2:
        return ()
    bounds = value.tolist()
    steps = tuple(end - start for start, end in pairwise(bounds))
    return steps if bounds[0] == 0 and bounds[-1] == tokens and min(steps) > 0 else ()


def in_batch(x: Tensor, lengths: Sequence[int]) -> Tensor:
    """Sequences in one row (tokens, ...) or (1, tokens, ...) as a batch, filled up with zeros.

    >>> in_batch(torch.tensor([[1.0], [2.0], [3.0]]), (1, 2)).squeeze(-1).tolist()
    [[1.0, 0.0], [2.0, 3.0]]
    """
    rows = x[0] if x.shape[:2] == (1, sum(lengths)) else x
    each, beside = torch.split(rows, list(lengths)), (0, 0) * (rows.ndim - 1)
    return torch.stack([nn.functional.pad(one, (*beside, 0, max(lengths) - len(one))) for one in each])


def in_row(x_BN: Tensor, lengths: Sequence[int], like: Tensor) -> Tensor:
    """The same in one row again, with as many axes as another tensor has.

    >>> in_row(torch.tensor([[[1.0], [0.0]], [[2.0], [3.0]]]), (1, 2), torch.zeros(3, 1)).squeeze(-1).tolist()
    [1.0, 2.0, 3.0]
    """
    row = torch.cat([one[:length] for one, length in zip(x_BN, lengths, strict=True)])
    return row[None] if like.ndim > row.ndim else row


def rows_among(
    block: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], shape: torch.Size
) -> tuple[str, tuple[int, ...]] | None:
    """The argument that says where each of several sequences in one row begins, and their lengths; None without rows.

    >>> block, bounds = nn.Bilinear(8, 8, 1), torch.tensor([0, 4, 6])
    >>> rows_among(block, (torch.zeros(6, 8), bounds), {}, torch.Size([6, 8]))
    ('input2', (4, 2))
    """
    if not _is_row(shape):
        return None
    named = {**dict(zip(inspect.signature(block.forward).parameters, args, strict=False)), **kwargs}
    found = ((name, lengths_in(value, shape[-2])) for name, value in named.items())
    return next((one for one in found if one[1]), None)


def real_tokens_in(
    block: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], shape: Sequence[int]
) -> Tensor | None:
    """True for real tokens (batch, tokens), by the mask that a block is handed: some token sees them. Else None.

    Such a mask has a name that says so and an entry for each token in its last axis: True where a token may look, or
    what is added to scores.

    >>> seen = torch.tensor([[1, 1, 1, 0]]).bool()
    >>> layer = nn.TransformerEncoderLayer(4, 2, 8)
    >>> real_tokens_in(layer, (torch.zeros(1, 4, 8),), {"attention_mask": seen[:, None, None]}, (1, 4))
    tensor([[ True,  True,  True, False]])
    """
    named = {**dict(zip(inspect.signature(block.forward).parameters, args, strict=False)), **kwargs}
    for name, mask in named.items():
        if not name.endswith("mask") or not isinstance(mask, Tensor) or not 2 <= mask.ndim <= 4:
            continue
        if mask.shape[0] != shape[0] or mask.shape[-1] != shape[1]:
            continue
        added = mask.is_floating_point() and (mask.ndim > 2 or "padding" in name)
        seen = mask > _HIDDEN if added else mask != 0
        if "padding" in name and not added:
            seen = ~seen
        return seen.reshape(shape[0], -1, shape[1]).any(dim=1)
    return None


@dataclass
class _Call:
    """One call of a block: shapes of what it was given and of what it made, and how the last call's output came in."""

    path: str
    given: dict[Way, torch.Size]
    links: dict[tuple[Way, Way], str]
    made: dict[Way, torch.Size] = field(default_factory=dict)
    rows: dict[Way, tuple[int, ...]] = field(default_factory=dict)


@dataclass
class Trail:
    """What the blocks of one list did in a pass; `fed` counts what they were given just as another list made it."""

    blocks: Blocks
    calls: list[_Call] = field(default_factory=list)
    fed: Counter[tuple[int, Way, Way]] = field(default_factory=Counter)
    others: list[Trail] = field(default_factory=list, repr=False)
    _given: dict[Way, tuple[Tensor, int]] = field(default_factory=dict)
    _made: dict[Way, tuple[Tensor, int]] = field(default_factory=dict)

    def enter(self, path: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Before a block is called."""
        given = dict((*tensors_in(args), *tensors_in(kwargs)))
        streams = {way: one for way, one in given.items() if _is_stream(one)}
        links = self._links(streams)
        if "same" not in links.values() and any(call.path == path for call in self.calls):
            links = {}  # the stack runs once more
        for other in self.others:
            self.fed.update((id(other), out, way) for out, (made, _) in other._made.items()
                            for way, one in streams.items() if same(one, made))  # fmt: skip
        self.calls.append(_Call(path, {way: one.shape for way, one in streams.items()}, links))
        flat = {one.shape[-2] for one in streams.values() if _is_row(one.shape)}
        found = {way: lengths_in(one, tokens) for way, one in given.items() for tokens in flat}
        self.calls[-1].rows = {way: lengths for way, lengths in found.items() if lengths}
        self._given = {way: (one, version(one)) for way, one in given.items()}
        self._made = {}

    def leave(self, output: Any) -> None:
        """After it; what it was given and hands on as it is was not made by it."""
        kept = [one for one, written in self._given.values() if written == version(one)]
        made = {
            way: one for way, one in tensors_in(output) if _is_stream(one) and not any(same(one, it) for it in kept)
        }
        self._made = {way: (one, version(one)) for way, one in made.items()}
        if self.calls:
            self.calls[-1].made = {way: one.shape for way, one in made.items()}

    def close(self) -> None:
        """Let go of all tensors."""
        self._given, self._made = {}, {}
        self.others.clear()

    def fed_by(self, other: Trail) -> int:
        """How often the stream of this list was just what that of another list had become there."""
        own, its = self.streams(), other.streams()
        if not own or not its or own[0].enters is None or its[0].leaves is None:
            return 0
        return self.fed[id(other), its[0].leaves, own[0].enters]

    def _links(self, given: Mapping[Way, Tensor]) -> dict[tuple[Way, Way], str]:
        """How what the last call made came into this one: as the same, as another of its shape, or of another shape."""
        before = [one for one, written in self._given.values() if written == version(one)]
        found = {}
        for out, (made, written) in self._made.items():
            for way, one in given.items():
                if one.ndim != made.ndim or any(same(one, it) for it in before):
                    continue
                if one.shape != made.shape:
                    found[out, way] = "reshaped"
                else:
                    kept = written == version(made) if same(one, made) else torch.equal(one, made)
                    found[out, way] = "same" if kept else "other"
        return found

    def streams(self) -> list[Stream]:
        """The streams that pass through the blocks, the plainest first; none where the calls are no chain."""
        if len(self.calls) == 1:
            self.calls[0].links.update(
                ((out, way), "same")
                for out, shape in self.calls[0].made.items()
                for way, one in self.calls[0].given.items()
                if shape == one
            )
        counts = {kind: Counter(pair for call in self.calls for pair, one in call.links.items() if one == kind)
                  for kind in ("same", "other", "reshaped")}  # fmt: skip
        pairs = counts["same"] or counts["other"]
        ranked = sorted(pairs, key=lambda pair: (-pairs[pair], pair[0] != (0,), _named(pair[1]), str(pair)))
        found: list[tuple[Way, Way]] = []
        for out, way in ranked:
            if all(out != one and way != other for one, other in found) and self._is_made(out):
                found.append((out, way))
        least = 2 if self._rows() else 3
        found = [pair for pair in found if least <= len(self._shape(pair[1])) <= 5]
        if not counts["same"]:
            found = found[:1]
        first = found[:1]
        for pair in found[1:]:
            shape, own = self._shape(first[0][1]), self._shape(pair[1])
            beside = len(pair[1]) > 1 and pair[1][:-1] == first[0][1][:-1]  # in one list of streams
            alike = own[-1] == shape[-1] or own[1:-1] == shape[1:-1] or beside
            alike = alike and len(own) == len(shape) and own[0] == shape[0]
            if alike and 2 * pairs[pair] >= pairs[first[0]]:
                first.append(pair)
        return [self._stream(out, way, counts) for out, way in first]

    @property
    def called(self) -> set[str]:
        """The blocks that were called."""
        return {call.path for call in self.calls}

    @property
    def joints(self) -> list[tuple[str, str]]:
        """Where the calls go on in another list: the last block of one and the first of the next."""
        paths = [call.path for call in self.calls]
        return [(one, other) for one, other in pairwise(paths) if one.rpartition(".")[0] != other.rpartition(".")[0]]

    @property
    def trouble(self) -> str:
        """Why there is no stream."""
        if not self.calls:
            return "none is called"
        if not any(call.made for call in self.calls):
            return f"{self.calls[0].path!r} returns no tensor of its own"
        shapes = {tuple(shape) for call in self.calls for shape in call.made.values()}
        if all(len(shape) < 3 for shape in shapes):
            return f"tensors of shape {min(shapes)} have no axis for each of batch, tokens and dim"
        return "none is given what another hands on"

    def _rows(self) -> Way | None:
        """The way to where sequences begin in a row, which each block is told alike."""
        rows = self.calls[0].rows if self.calls else {}
        return next((way for way, one in rows.items() if all(call.rows.get(way) == one for call in self.calls)), None)

    def _is_made(self, out: Way) -> bool:
        return 2 * sum(out in call.made for call in self.calls) >= len(self.calls)

    def _shape(self, way: Way) -> torch.Size:
        return next(call.given[way] for call in self.calls if way in call.given)

    def _stream(self, out: Way, way: Way, counts: Mapping[str, Counter[tuple[Way, Way]]]) -> Stream:
        calls = [call for call in self.calls if out in call.made]
        shapes, stages, stage = [call.made[out] for call in calls], dict[str, int](), 0
        last = calls[0].given.get(way, shapes[0])
        for call, shape in zip(calls, shapes, strict=True):
            stage, last = stage + (shape != last), shape
            stages[call.path] = stage
        # A stage with as many features as places in a row does not say which axis has them.
        telling = next((call for call in calls if call.made[out][1] != call.made[out][-1]), calls[0])
        return Stream(
            axes=axes_of(telling.made[out], self.blocks[telling.path]),
            enters=way,
            leaves=out,
            stages=stages if stage else {},
            depth=len(calls),
            altered=counts["other"][out, way],
            ends=len(calls) < len(self.calls),
            rows=self._rows() if _is_row(shapes[0]) else None,
        )


@dataclass
class Parts:
    """What the parts of blocks did that are mere lists: `x = attention(x) + x; x = mlp(x) + x` for each pair in a list.

    The stream is then what enters the first part of each block. It leaves the last one as it is, or added to what that
    was given; which of them, the block after it shows.
    """

    blocks: Blocks
    ends: dict[str, tuple[str, str]] = field(default_factory=dict)
    kinds: list[str] = field(default_factory=list)
    shapes: list[torch.Size] = field(default_factory=list)
    _given: Tensor | None = None
    _left: Tensor | None = None
    _last: str | None = None

    def enter(self, path: str, part: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Before a part is called."""
        given = next((one for _, one in (*tensors_in(args), *tensors_in(kwargs)) if _is_stream(one)), None)
        if path != self._last and given is not None:
            self.shapes.append(given.shape)
            self.kinds += [] if self._left is None or self._given is None else [_kind(given, self._given, self._left)]
            self.ends[path], self._last = (part, part), path
        self._given, self._left = given, None

    def leave(self, path: str, part: str, output: Any) -> None:
        """After it."""
        self._left = next((one for _, one in tensors_in(output) if _is_stream(one)), None)
        if path in self.ends:
            self.ends[path] = self.ends[path][0], part

    trouble = "the parts do not show what each block hands on"

    @property
    def called(self) -> set[str]:
        """The blocks of which parts were called."""
        return {*self.ends}

    def close(self) -> None:
        """Let go of all tensors."""
        self._given = self._left = None

    def streams(self) -> list[Stream]:
        """The stream, where each block shows it in the same way."""
        one_way = len(set(self.kinds)) == 1 and self.kinds[0] in ("same", "sum")
        if not one_way or len(set(self.shapes)) > 1 or len(self.shapes[0]) != 3:
            return []
        return [Stream(depth=len(self.shapes), parts=self.ends, summed=self.kinds[0] == "sum")]


def _kind(entering: Tensor, given: Tensor, left: Tensor) -> str:
    if entering.shape != left.shape:
        return "other"
    if torch.equal(entering, left):
        return "same"
    added = given.shape == left.shape and torch.allclose(entering, given + left, 0, 1e-5 * float(left.abs().max()))
    return "sum" if added else "other"


def parts_of_list(block: nn.Module, path: str = "") -> Iterator[tuple[str, nn.Module]]:
    """What stands in a list, and in lists in it."""
    for name, child in block.named_children():
        if isinstance(child, nn.ModuleList | nn.ModuleDict):
            yield from parts_of_list(child, f"{path}{name}.")
        else:
            yield f"{path}{name}", child


def axes_of(shape: torch.Size, block: nn.Module) -> str:
    """Which axis has the features: the last, unless norms and biases of the block have the width of the second alone.

    >>> axes_of(torch.Size([2, 8, 3, 4]), nn.GroupNorm(1, 8)), axes_of(torch.Size([2, 3, 4, 8]), nn.LayerNorm(8))
    ('BDP', 'BPD')
    """
    if len(shape) == 2:
        return "ND"
    widths = widths_of(block)
    second = widths.get(shape[1], 0) > widths.get(shape[-1], 0)
    if len(shape) > 3:
        return "BDP" if second else "BPD"
    return "BDN" if second and shape[-1] not in widths else "BND"


@contextmanager
def following(lists: Sequence[Blocks]) -> Iterator[list[Trail | Parts]]:
    """Follow the calls of some lists of blocks while the context is open."""
    trails: list[Trail | Parts] = [Parts(blocks) if _is_uncalled(blocks) else Trail(blocks) for blocks in lists]
    calls = [one for one in trails if isinstance(one, Trail)]
    for one in calls:
        one.others = [other for other in calls if other is not one]
    with Hooks() as hook:
        for trail in trails:
            for path, block in trail.blocks.items():
                if isinstance(trail, Trail):
                    enter, leave = partial(_enter, trail.enter, path), partial(_leave, trail.leave)
                    hook(block.register_forward_pre_hook, enter, with_kwargs=True)
                    hook(block.register_forward_hook, leave)
                    continue
                for name, part in parts_of_list(block):
                    enter, leave = partial(_enter, partial(trail.enter, path), name), partial(trail.leave, path, name)
                    hook(part.register_forward_pre_hook, enter, with_kwargs=True)
                    hook(part.register_forward_hook, partial(_leave, leave))
        try:
            yield trails
        finally:
            for trail in trails:
                trail.close()


def _is_uncalled(blocks: Blocks) -> bool:
    return all(isinstance(block, nn.ModuleList | nn.ModuleDict) for block in blocks.values())


def _enter(see: Callable[..., None], name: str, module: nn.Module, args: Any, kwargs: Any) -> None:
    see(name, args, kwargs)


def _leave(see: Callable[[Any], None], module: nn.Module, args: Any, output: Any) -> None:
    see(output)


def same(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are one in memory, or one object."""
    return one is other or (one.shape == other.shape and one.data_ptr() == other.data_ptr() != 0)


def _is_row(shape: torch.Size) -> bool:
    """Whether all tokens of a batch may be in one row: (tokens, dim) or (1, tokens, dim)."""
    return len(shape) == 2 or (len(shape) == 3 and shape[0] == 1)


def _is_stream(one: Tensor) -> bool:
    return one.is_floating_point() and one.ndim > 1 and not one.is_nested


def version(one: Tensor) -> int:
    """How often a tensor was written into."""
    return 0 if one.is_inference() else one._version


def _named(way: Way) -> int:
    """What is called hidden states comes before what is not."""
    return 0 if way in ((0,), ("hidden_states",)) else 1
