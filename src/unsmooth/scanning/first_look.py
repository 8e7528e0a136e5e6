"""A first look at a model: which of its stacks run as proposed, what becomes the tokens of each, which mask is theirs.

Blocks of a known family say how they are called; of others a pass over the first batch shows it. Neither says which of
the batch's inputs become the tokens of which stack: an encoder and a decoder may be of one class. So it is tried: an
input is changed, and what enters the first block of a stack changes with it or does not. Each try is a pass that is
broken off when every stack was entered.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from unsmooth.errors import UnsmoothError, expected
from unsmooth.functional._grid import grid_of_image
from unsmooth.models import Anatomy, find_stacks
from unsmooth.models.hooks import Hooks
from unsmooth.models.host import Host, Reads
from unsmooth.models.look import Parts, Stream, Trail, Way, argument, following
from unsmooth.models.spread import is_sharded, is_spread
from unsmooth.models.stacks import (
    Blocks,
    holding_attention,
    is_inside,
    leading_tokens,
    lists_with_attention,
    pattern_of,
)
from unsmooth.models.walk import modules_of
from unsmooth.models.watch import first_input
from unsmooth.scanning.calling import RESERVED, call, image_size, is_content, taken, token_ids
from unsmooth.scanning.data import KINDS, RawBatch
from unsmooth.scanning.marked_sounds import is_mask, made_of, marking, marks_padding
from unsmooth.scanning.trying import Enough, is_chain, quietly


@dataclass(frozen=True)
class _Seen:
    """What a look found of one stack, without its modules, by which it would hold on to the model.

    Args:
        of: Which of the stacks asked for it is.
        paths: Of its blocks, where they are others than proposed.
        stack: What it is called.
    """

    of: int
    paths: tuple[str, ...] | None
    stack: str
    stream: Stream | None
    reads: Reads | None
    told: tuple[str, ...]


# By the model; with its modules, the stacks asked for, and the form of the batch.
_KNOWN: WeakKeyDictionary[nn.Module, tuple[Any, list[_Seen]]] = WeakKeyDictionary()


def first_look(entry: nn.Module, stacks: Sequence[Anatomy], inputs: RawBatch) -> list[Anatomy]:
    """The stacks, with what is found out about those that leave something open; `entry` is called where there are some.

    Unknown blocks of two streams are two stacks; those that do not hand on tokens are none. A mask belongs to a stack
    if it goes, by its name, with the inputs that become the stack's tokens, and has one entry for each of them.

    Raises:
        UnsmoothError: Two masks fit, the batch cannot be told from the tokens, or no blocks hand on tokens.
    """
    if not any(is_open(stack, inputs) for stack in stacks):
        return list(stacks)
    if is_sharded(entry):  # whose processes would all have to try the same things
        for stack in stacks:
            if not stack.is_known and _of_several_kinds(inputs) and "token_mask" not in inputs:
                got = "one that is sharded by FSDP2, which cannot be tried out"
                raise expected(f"a model that shows what {_pattern(stack)!r} reads", got, 'a "token_mask" in the data')
        return [one if one.is_known else replace(one, told=(*one.told, _untried(one))) for one in stacks]
    model, fields = stacks[0].model, inputs if isinstance(inputs, Mapping) else {"": inputs}
    form = [(name, one.shape, one.dtype) if isinstance(one, Tensor) else name for name, one in fields.items()]
    form += [name for name, one in fields.items() if is_mask(name, one) and bool((one == 0).any())]
    modules = modules_of(model)
    key = [*map(id, (entry, *modules))], [*map(type, modules)], [(one.stack, *one.blocks) for one in stacks], form
    if model in _KNOWN and _KNOWN[model][0] == key:
        return [_again(stacks[one.of], one) for one in _KNOWN[model][1]]
    found = _verified(entry, stacks, inputs)
    entered = _entered(entry, [one for _, one in found], inputs)
    found = _each_tried(entry, found, entered, inputs)
    _KNOWN[model] = key, [
        _Seen(n, None if one.blocks is stacks[n].blocks else (*one.blocks,), one.stack, one.stream, one.seen_to_read,
              one.told) for n, one in found
    ]  # fmt: skip
    return [one for _, one in found]


def _untried(stack: Anatomy) -> str:
    """What a reader must know of blocks that were not tried out."""
    taken = "the first tensor that each is handed and hands on is taken for its tokens, as (batch, tokens, dim)"
    return f"The blocks at {_pattern(stack)!r} are sharded by FSDP2 and were not tried out: {taken}."


def _again(stack: Anatomy, seen: _Seen) -> Anatomy:
    blocks = stack.blocks
    if seen.paths is not None:
        blocks = next(one for one in _lists(stack) if (*one,) == seen.paths)
    return replace(stack, blocks=blocks, stack=seen.stack, stream=seen.stream, seen_to_read=seen.reads, told=seen.told)


def is_open(stack: Anatomy, inputs: RawBatch) -> bool:
    """Whether it is open what a stack reads of a batch.

    It is for unknown blocks, and for known ones where the batch has names of its own, or has more than one input that
    a lone stack could read, or where several stacks would read one.
    """
    if stack.seen_to_read is not None:
        return False
    if not stack.is_known:
        return True
    if not isinstance(inputs, Mapping):
        return False
    if not any(map(is_content, inputs)) and stack.host.real_tokens is Host.real_tokens:
        return True  # nor do its blocks show a mask as they are called
    if stack.stack:
        return sum(other.reads == stack.reads for other in find_stacks(stack.model)) > 1
    return _of_several_kinds(inputs)


def _of_several_kinds(inputs: RawBatch) -> bool:
    return isinstance(inputs, Mapping) and len(_inputs_by_mask(inputs)) > 1


def _verified(entry: nn.Module, stacks: Sequence[Anatomy], inputs: RawBatch) -> list[tuple[int, Anatomy]]:
    """Each stack by the number of the one proposed: known ones as they are, others as a pass shows them."""
    unknown = [stack for stack in stacks if not stack.is_known]
    if not unknown:
        return list(enumerate(stacks))
    others = [blocks for stack in unknown if stack.proposed for blocks in _lists(stack)]
    with quietly(entry), following([*(dict(one.blocks) for one in unknown), *others]) as trails:
        try:
            call(entry, inputs)
        except Exception as error:  # each model has its own way to say that something is missing
            if (told := _missing(entry, inputs, error)) is None:
                raise
            raise told from error
    found, out = list[tuple[int, Anatomy]](), list[str]()
    between = _standing_between(unknown, trails)
    for number, stack in enumerate(stacks):
        if stack.is_known:
            found.append((number, stack))
            continue
        own, about = trails[unknown.index(stack)], pattern_of(next(iter(stack.blocks)))
        if (main := between.get(unknown.index(stack))) is not None:
            there = f"stand between those at {_pattern(unknown[main])!r}, whose tokens they are handed and hand back"
            out.append(f"The blocks at {about!r} {there}: they were not measured by themselves.")
            continue
        streams = own.streams()
        if stack.proposed and streams and streams[0].altered:
            # What stands in the list beside those that attend may be what does something to the tokens.
            alike = [one for one in trails[len(unknown) :] if pattern_of(next(iter(one.blocks))) == about]
            for one in alike:
                if (whole := one.streams()) and not whole[0].altered:
                    own, streams, stack = one, whole, replace(stack, blocks=one.blocks)
        branches = bool(streams) and not is_chain(entry, stack, own, streams[0], inputs)
        if own.called and stack.proposed and (branches or not streams):
            near = [one for one in trails[len(unknown) :] if _overlap(stack.blocks, one.blocks) and one.streams()]
            near = [one for one in near if not (branches and own.called & one.called)]
            trouble = "some do not depend on those called before them" if branches else own.trouble
            own = min(near, key=lambda one: next(iter(one.blocks)).count("."), default=own)
            if not near:
                out.append(f"The blocks at {about!r} ran and were not measured: {trouble}.")
                continue
            streams = own.streams()
            if any(one.blocks is own.blocks for _, one in found):
                continue  # two lists inside the blocks of one
            stack = replace(stack, blocks=own.blocks)
        marked = [replace(one, beside=one is not streams[0]) for one in streams]
        found += [(number, _flowing(stack, own, one, len(streams) > 1)) for one in marked]
        found += [] if streams else [(number, stack)]
    if not found:
        raise expected(
            "blocks that hand their tokens to one another",
            f"{_pattern(unknown[0])!r}, of which {trails[0].trouble}",
            'another blocks pattern, or blocks="auto:any"',
        )
    return [(number, replace(stack, told=(*stack.told, *out))) for number, stack in found]


def _standing_between(stacks: Sequence[Anatomy], trails: Sequence[Trail | Parts]) -> dict[int, int]:
    """Which stacks are no depth of their own as their blocks stand between those of another, and of which.

    Of two lists by turns, the one is measured that runs on by itself more often, or else the one that ends.
    """
    found: dict[int, int] = {}
    own = [(number, one) for number, one in enumerate(trails[: len(stacks)]) if isinstance(one, Trail)]
    for (first, one), (second, other) in combinations(own, 2):
        forth, back = other.fed_by(one), one.fed_by(other)
        if stacks[first].proposed and stacks[second].proposed and forth and back:
            more = one.streams()[0].altered - other.streams()[0].altered
            # What begins hands on once more than it is handed back to.
            found |= {first: second} if more > 0 or (more == 0 and forth >= back) else {second: first}
    return found


def _missing(entry: nn.Module, inputs: RawBatch, error: Exception) -> UnsmoothError | None:
    """What to say of a batch with which the model fails; None where nothing plainly is missing."""
    given = {*inputs} if isinstance(inputs, Mapping) else set()
    wanted = [name for name in (*KINDS, "decoder_input_ids") if name in taken(entry) and name not in given]
    if not given or not wanted:
        return None
    problem = (str(error).splitlines() or [""])[0].rstrip(".")
    got = f"{', '.join(sorted(given))}, with which it fails ({type(error).__name__}: {problem})"
    return expected(f"all that {type(entry).__name__} reads in each batch", got, f"{' or '.join(wanted)} beside them")


def _flowing(stack: Anatomy, trail: Trail | Parts, stream: Stream, several: bool) -> Anatomy:
    """One of the streams that pass through a stack's blocks, with what a reader must know of it."""
    told, name = list(stack.told), stack.stack
    if several:
        name = f"{name}.{_argument_name(next(iter(stack.blocks.values())), stream.enters)}".lstrip(".")
    if stream.altered:
        told.append(altered_note(stream.altered, stack))
    if isinstance(trail, Parts) and (rest := [one for one in stack.blocks.values() if not holding_attention(one)]):
        told.append(
            f"{len(rest)} of the {len(stack.blocks)} blocks at {_pattern(stack)!r} are half-layers: no attention."
        )
    if left := [path for path in stack.blocks if path not in trail.called]:
        told.append(f"{len(left)} of the {len(stack.blocks)} blocks at {_pattern(stack)!r} did not run: {left[0]!r}.")
    return replace(stack, stack=name, stream=stream, told=tuple(told))


def altered_note(times: int, stack: Anatomy) -> str:
    """What a reader must know of blocks between which something happens."""
    return (
        f"In {times} places between the blocks at {_pattern(stack)!r} something is done to their tokens: "
        "what is measured is what each block hands on."
    )


def _argument_name(block: nn.Module, way: Way | None) -> str:
    """What a block calls an argument, and which of a list it is."""
    first, *rest = way or (0,)
    names = [*inspect.signature(block.forward).parameters]
    name = names[first] if isinstance(first, int) and first < len(names) else first
    return ".".join(map(str, (name, *rest)))


def _lists(stack: Anatomy) -> list[Blocks]:
    """All lists whose members hold attention, by paths from where the stack's own begin."""
    first, path = next(iter(stack.blocks.items()))[::-1]
    inner = next((name for name, module in stack.model.named_modules() if module is first), path)
    before = path.removesuffix(inner)
    return [{f"{before}{one}": it for one, it in blocks.items()} for blocks in lists_with_attention(stack.model)]


def _overlap(blocks: Mapping[str, nn.Module], others: Mapping[str, nn.Module]) -> bool:
    one, other = (pattern_of(next(iter(it))) for it in (blocks, others))
    return is_inside(one, [other]) or is_inside(other, [one])


def _entered(
    entry: nn.Module, stacks: Sequence[Anatomy], inputs: RawBatch, masks: dict[int, Tensor | None] | None = None
) -> list[Tensor | None]:
    """What enters the first block of each stack that leaves something open; the model is called as far as is needed.

    `masks` takes which tokens are real, by the mask that the blocks are handed.
    """
    wanted = [number for number, stack in enumerate(stacks) if is_open(stack, inputs)]
    found: list[Tensor | None] = [None] * len(stacks)
    in_part = not is_spread(entry)  # where it lets weights go, at its end, that were fetched

    def enter(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], number: int) -> None:
        if found[number] is None:
            way = stacks[number].flow.enters
            if masks is not None:
                masks[number] = stacks[number].mask_handed(module, args, kwargs)
            given = argument(args, kwargs, way) if way else None
            # Blocks may write into what they are handed.
            found[number] = (given if isinstance(given, Tensor) else first_input(args, kwargs)).clone()
        if in_part and all(found[one] is not None for one in wanted):
            raise Enough

    if wanted:
        with quietly(entry), suppress(Enough), Hooks() as hook:
            for number in wanted:
                for path in stacks[number].blocks:
                    hook(
                        stacks[number].ends_of(path)[0].register_forward_pre_hook,
                        lambda module, args, kwargs, number=number: enter(module, args, kwargs, number),
                        with_kwargs=True,
                    )
            call(entry, inputs)
    return found


def _each_tried(
    entry: nn.Module, stacks: Sequence[tuple[int, Anatomy]], entered: Sequence[Tensor | None], inputs: RawBatch
) -> list[tuple[int, Anatomy]]:
    """The stacks with what is seen of them; of several that were found, those of which it is plain what they read."""
    found, out, ran = list[tuple[int, Anatomy]](), list[UnsmoothError](), 0
    for (number, stack), stream in zip(stacks, entered, strict=True):
        try:
            tried = _tried(entry, stack, stream, inputs)
            ran += stream is not None or stack.is_known
            found.append((number, tried))
        except UnsmoothError as error:
            if stack.is_known or not stack.proposed:
                raise
            out.append(error)
    if out and not ran:
        raise out[0]  # what else there is does not run
    told = tuple(f"A stack was not measured. {error}" for error in out)
    return [(number, replace(stack, told=(*stack.told, *told))) for number, stack in found]


def _tried(entry: nn.Module, stack: Anatomy, stream: Tensor | None, inputs: RawBatch) -> Anatomy:
    """The stack with what is seen of it; one that is not reached, or has no token vectors, stays as it is."""
    if stream is None or not stack.flow.fits(stream):
        return stack
    if stack.flow.rows is not None:  # which say what a mask would
        return replace(stack, seen_to_read=Reads("", "token_mask"))
    if not stack.is_known and stream.ndim > 3:
        _check_places(stack, stream, inputs)
    elif not stack.is_known and stack.flow.axes == "BND":
        axes, each = _axes(entry, stack, stream, inputs)
        stack = replace(stack, stream=replace(stack.flow, axes=axes, each=each))
    reads = _reads(entry, stack, stream, inputs) if isinstance(inputs, Mapping) else stack.reads
    if isinstance(inputs, Mapping) and reads.start is None and not isinstance(inputs.get(reads.mask or ""), Tensor):

        def moves(changed: Mapping[str, Tensor]) -> bool:
            [other] = _entered(entry, [stack], {**inputs, **changed})
            return other is not None and not (other.shape == stream.shape and other.equal(stream))

        reads = replace(reads, marked=marking(inputs, moves))
        if marks_padding(inputs, reads):
            masks, known = dict[int, Tensor | None](), replace(stack, seen_to_read=reads)
            _entered(entry, [stack], inputs, masks)
            # Refused here, a stack beside others is left out.
            made_of(inputs[reads.marked or ""], known, stack.flow.laid_out(stream).shape[1], masks.get(0))
    told = stack.told
    if reads.start == 0 and not reads.beside:
        told += ("The model puts tokens of its own behind those of the batch, which were not measured.",)
    flow = None if stack.is_known else replace(stack.flow, prefix=_prefix(stack, stream, reads, inputs))
    return replace(stack, seen_to_read=reads, stream=flow, told=told)


def _prefix(stack: Anatomy, stream: Tensor, reads: Reads, inputs: RawBatch) -> int:
    """Learned tokens in front of the patches of an image, where without them patches are left that fill it."""
    image, tokens = image_size(inputs), stack.flow.laid_out(stream).shape[1]
    of_text = isinstance(inputs, Mapping) and token_ids(inputs, reads) is not None
    if image is None or of_text or grid_of_image(tokens, image) is not None:
        return 0
    learned = leading_tokens(stack.entries[-1])
    return learned if tokens > learned and grid_of_image(tokens - learned, image) is not None else 0


def _axes(entry: nn.Module, stack: Anatomy, stream: Tensor, inputs: RawBatch) -> tuple[str, int]:
    """Which axis has the sequences, or how many tokens each has in the one row of all.

    Where shapes leave it open, a pass with one sequence more says it.
    """
    batch, (first, second) = _batch_size(inputs), stream.shape[:2]
    if first == batch != second:
        return "BND", 0
    if first == 1 and (each := _patches_of_each(inputs, second)):
        return "1ND", each
    with suppress(Exception):  # each model has its own way to refuse a batch that it was not made for
        [more] = _entered(entry, [stack], _with_one_more(inputs, batch))
        grown = [now != before for now, before in zip(_shape_of(more), (first, second), strict=True)]
        if grown == [False, True] and first == 1 and second > batch and second % batch == 0:
            return "1ND", second // batch
        if sum(grown) == 1:
            return ("BND" if grown[0] else "NBD"), 0
    if batch and (first % batch == 0) != (second % batch == 0):  # windows of a sequence may be sequences here
        return ("BND" if first % batch == 0 else "NBD"), 0
    raise expected(
        f"(batch, tokens, dim) or (tokens, batch, dim) at {_pattern(stack)!r}",
        f"{tuple(stream.shape)} for {batch} sequences, of which neither can be told",
        "a batch of another size",
    )


def _patches_of_each(inputs: RawBatch, tokens: int) -> int:
    """How many of the patches in one row each image has, where the data says so of images of one size; else 0."""
    for one in inputs.values() if isinstance(inputs, Mapping) else ():
        if isinstance(one, Tensor) and one.ndim == 2 and one.shape[1] == 3 and not one.is_floating_point():
            counts = one.prod(dim=1).tolist()  # frames, rows and columns
            if len({*counts}) == 1 and sum(counts) == tokens:
                return int(counts[0])
    return 0


def _check_places(stack: Anatomy, stream: Tensor, inputs: RawBatch) -> None:
    """Refuse what is no place of an image but one of several vectors of a token, as hyper-connections have them.

    And a shape of as many places in a row as features, which does not say which axis has those.
    """
    if stream.shape[1] == stream.shape[-1] and not stack.flow.stages:
        wanted = f"(batch, dim, height, width) or (batch, height, width, dim) at {_pattern(stack)!r}"
        raise expected(wanted, f"{tuple(stream.shape)}, which may be either", "images of another size")
    batch, fields = _batch_size(inputs), inputs.values() if isinstance(inputs, Mapping) else [inputs]
    ids = [one.shape for one in fields if isinstance(one, Tensor) and one.ndim == 2 and not one.is_floating_point()]
    if (batch and stream.shape[0] % batch) or any(shape in (stream.shape[:2], stream.shape[1:3]) for shape in ids):
        got = f"several, {tuple(stream.shape)}"
        raise expected(
            f"one vector for each token at {_pattern(stack)!r}", got, "a pattern for modules that hand on one"
        )


def _shape_of(stream: Tensor | None) -> torch.Size:
    assert stream is not None
    return stream.shape[:2]


def _batch_size(inputs: RawBatch) -> int:
    if isinstance(inputs, Tensor):
        return inputs.shape[0]
    return next((one.shape[0] for group in _inputs_by_mask(inputs).values() for one in group.values()), 0)


def _with_one_more(inputs: RawBatch, batch: int) -> RawBatch:
    """The same with its first sequence once more at the end."""
    if isinstance(inputs, Tensor):
        return torch.cat([inputs, inputs[:1]])
    return {
        name: torch.cat([one, one[:1]]) if isinstance(one, Tensor) and one.ndim and one.shape[0] == batch else one
        for name, one in inputs.items()
    }


def _inputs_by_mask(inputs: Mapping[str, Any]) -> dict[str | None, dict[str, Tensor]]:
    """The inputs that may become tokens, by the name of the mask that goes with them; None for images, which have none.

    >>> ids, pixels = torch.zeros(2, 5, dtype=torch.long), torch.zeros(2, 3, 8, 8)
    >>> groups = _inputs_by_mask({"pixel_values": pixels, "decoder_input_ids": ids, "decoder_attention_mask": ids})
    >>> {mask: list(group) for mask, group in groups.items()}
    {None: ['pixel_values'], 'decoder_attention_mask': ['decoder_input_ids']}
    """
    groups: dict[str | None, dict[str, Tensor]] = {}
    sides = [name.removesuffix("attention_mask") for name in inputs if name.endswith("attention_mask")]
    for name, one in inputs.items():
        if isinstance(one, Tensor) and one.ndim > 1 and "mask" not in name and name not in RESERVED:
            side = max((side for side in ("", "decoder_", *sides) if name.startswith(side)), key=len)
            groups.setdefault(f"{side}attention_mask" if one.ndim < 4 else None, {})[name] = one
    return groups


def _reads(entry: nn.Module, stack: Anatomy, stream: Tensor, inputs: Mapping[str, Any]) -> Reads:
    """What becomes the tokens of a stack, and which mask is theirs."""
    stream_BND = stack.flow.laid_out(stream)
    groups, shape = _inputs_by_mask(inputs), stream_BND.shape[:2]

    def becomes(mask: str | None) -> bool:
        return any(
            changes(changed, column) for changed, column in _changed(groups[mask], shape, inputs.get(mask or ""))
        )

    def changes(changed: Mapping[str, Tensor], column: slice | int) -> bool:
        try:
            [other] = _entered(entry, [stack], {**inputs, **changed})
        except Exception:  # each model has its own way to refuse what it was not made for
            return True
        if other is None:
            return True
        other_BND = stack.flow.laid_out(other)
        if other_BND.shape != stream_BND.shape:
            return True
        return not other_BND[:, column].equal(stream_BND[:, column])

    becoming = [mask for mask in groups if becomes(mask)]
    for mask in [mask for mask in becoming if mask is not None and not _fits(inputs.get(mask), groups[mask], shape)]:
        if (found := _placed(entry, stack, stream_BND, groups[mask], inputs, inputs.get(mask))) is not None:
            return Reads(found[0], mask, start=found[1], beside=len(becoming) > 1)
    if len(becoming) > 1:  # as where images stand between the words of a text
        masked = any(mask in inputs for mask in groups)
        becoming = [mask for mask in becoming if mask is not None and _fits(inputs.get(mask), groups[mask], shape)]
        if len(becoming) != 1 and masked and "token_mask" not in inputs:
            raise expected(
                f"one input that becomes the {shape[1]} tokens of {_pattern(stack)!r}",
                " and ".join(name for mask in becoming or groups for name in groups[mask]),
                'a "token_mask" of (batch, tokens) in the data, True = a token to be measured',
            )
    if len(becoming) != 1:
        return Reads("", "token_mask")
    group, own = groups[becoming[0]], inputs.get(becoming[0] or "")
    if not _ids(group, shape) and isinstance(own, Tensor) and own.shape[:2] != shape:
        return Reads("", "token_mask")  # of tokens that the model makes of those
    return Reads(next(iter(_ids(group, shape) or group)), becoming[0] or "token_mask")


def _placed(
    entry: nn.Module,
    stack: Anatomy,
    stream_BND: Tensor,
    group: Mapping[str, Tensor],
    inputs: Mapping[str, Any],
    mask: Any,
) -> tuple[str, int] | None:
    """The ids that are some of a stack's tokens, and how many others stand in front: a change in the last one shows.

    Sparse attention needs lengths of a certain kind, and fills texts up; images may stand in front of a text. Where the
    first one is not as far in front as there are ids, they do not lie in one run: the model may have chosen ids itself.
    """

    def changing(name: str, column: int) -> list[int]:
        changed = inputs[name].clone()
        changed[:, column] = (changed[:, column] - 1).abs()
        [other] = _entered(entry, [stack], {**inputs, name: changed})
        if other is None or other.numel() != stream_BND.numel():
            return []
        return (stack.flow.laid_out(other) != stream_BND).any(dim=-1).any(dim=0).nonzero().flatten().tolist()

    for name, ids in group.items():
        if ids.ndim == 2 and not ids.is_floating_point() and ids.shape[1] < stream_BND.shape[1]:
            places = list[int]()
            with suppress(Exception):  # sizes of images, which are no ids, cannot be others
                places = changing(name, -1)
            if len(places) == 1 and (start := places[0] - ids.shape[1] + 1) >= 0:
                first = [start]
                with suppress(Exception):  # each model has its own way to refuse ids that it was not made for
                    first = changing(name, 0)
                if first == [start]:
                    return name, start
                if isinstance(mask, Tensor) and bool((mask == 0).any()):
                    got = f"{name!r}, whose first and last one are elsewhere"
                    hint = 'a "token_mask" of (batch, tokens) in the data, True = a token to be measured'
                    raise expected(f"ids in one run among the tokens of {_pattern(stack)!r}", got, hint)
    return None


def _ids(group: Mapping[str, Tensor], shape: torch.Size) -> list[str]:
    """Those that have an integer for each token, ids before types and positions."""
    names = [name for name, one in group.items() if one.shape == shape and not one.is_floating_point()]
    return sorted(names, key=lambda name: not name.endswith("input_ids"))


def _changed(
    group: Mapping[str, Tensor], shape: torch.Size, mask: Any
) -> Iterator[tuple[dict[str, Tensor], slice | int]]:
    """Other inputs in place of these, and where tokens must change with them; several to be tried.

    One column of ids, which shows too that tokens are where their ids are: some decoders shift them, and images or
    sounds may take the place of the first. Then what is beside the ids, as boxes are, which may be a stream of its own:
    those of another sequence fit any model.
    """
    if not (ids := _ids(group, shape)):
        made = {name: one + 1 if one.is_floating_point() else one.roll(1, dims=-1) for name, one in group.items()}
        yield made, slice(None)
        return
    real_N = mask.long().sum(dim=0) if isinstance(mask, Tensor) and mask.shape == shape else torch.ones(shape[1])
    full = (real_N == real_N.max()).nonzero().flatten().tolist()
    for column in dict.fromkeys((full[0], full[-1])):
        other = group[ids[0]].clone()
        other[:, column] = (other[:, column] - 1).abs()
        yield {ids[0]: other}, column
    if beside := {name: one.roll(1, dims=0) for name, one in group.items() if one.ndim > 2 and one.shape[:2] == shape}:
        yield beside, slice(None)


def _fits(mask: Any, group: Mapping[str, Tensor], shape: torch.Size) -> bool:
    return any(one.shape[:2] == shape for one in ([mask] if isinstance(mask, Tensor) else group.values()))


def _pattern(stack: Anatomy) -> str:
    return pattern_of(next(iter(stack.blocks)))
