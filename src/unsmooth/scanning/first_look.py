"""A first look at how a model calls a stack: what becomes its tokens, which mask is theirs, which axis is the batch.

A stack that was named by a pattern says nothing of itself, nor would its class name: an encoder and a decoder may be of
one class. So it is tried: an input is changed, and what enters the first block changes with it or does not.
Each try is a pass that is broken off when the second block is entered.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from unsmooth.errors import expected
from unsmooth.models import Anatomy, find_stacks
from unsmooth.models.hooks import Hooks, uncompiled
from unsmooth.models.host import Host, Reads
from unsmooth.models.spread import home_of, is_sharded, is_spread
from unsmooth.models.stacks import pattern_of
from unsmooth.models.watch import first_input
from unsmooth.scanning.calling import RESERVED, call, is_content
from unsmooth.scanning.data import RawBatch


def first_look(entry: nn.Module, stacks: Sequence[Anatomy], inputs: RawBatch) -> list[Anatomy]:
    """The stacks, with what is found out about those that leave something open; `entry` is called where there are some.

    A mask belongs to a stack if it goes, by its name, with the inputs that become the stack's tokens, and has one entry
    for each of them.

    Raises:
        UnsmoothError: Two masks fit, the batch cannot be told from the tokens, or the blocks have two streams.
    """
    return [_tried(entry, stack, inputs) if is_open(stack, inputs) else stack for stack in stacks]


def is_open(stack: Anatomy, inputs: RawBatch) -> bool:
    """Whether it is open what a stack reads of a batch.

    It is for unknown blocks, and for known ones where the batch has names of its own, or has more than one input that
    a lone stack could read, or where several stacks would read one.
    """
    if stack.seen_to_read is not None:
        return False
    if not stack.host.blocks:
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


def _tried(entry: nn.Module, stack: Anatomy, inputs: RawBatch) -> Anatomy:
    """The stack with what is seen of it; one that is not reached, or has no token vectors, stays as it is."""
    if is_sharded(entry):  # whose processes would all have to try the same things
        if not stack.host.blocks and _of_several_kinds(inputs) and "token_mask" not in inputs:
            got = "one that is sharded by FSDP2, which cannot be tried out"
            raise expected(f"a model that shows what {_pattern(stack)!r} reads", got, 'a "token_mask" in the data')
        return stack
    glance = _glance(entry, stack, inputs)
    if not glance.entered or glance.entered[0].ndim != 3:
        return stack
    if glance.other_stream:
        raise expected(
            f"blocks with one stream of tokens at {_pattern(stack)!r}",
            f"{' and '.join(glance.shapes)}, of which the next block does not plainly take the first",
            "a pattern for modules that hand on one of them",
        )
    if not stack.host.blocks:
        batch_first = _batch_first(entry, stack, glance.entered[0], inputs)
        stack = replace(stack, host=replace(stack.host, batch_first=lambda block: batch_first))
    reads = _reads(entry, stack, glance.entered[0], inputs) if isinstance(inputs, Mapping) else stack.reads
    return replace(stack, seen_to_read=reads, other_streams=glance.beside)


@dataclass
class _Glance:
    """What entered the first two blocks that were called, and what the first of them handed on."""

    entered: list[Tensor] = field(default_factory=list)
    left: tuple[Tensor, ...] = ()
    other_stream: bool = False
    beside: tuple[str, ...] = ()
    given: list[Tensor] = field(default_factory=list)

    @property
    def shapes(self) -> list[str]:
        return [str(tuple(one.shape)) for one in self.left]


class _Enough(Exception):  # noqa: N818 - it is no error
    """All was seen that was wanted."""


def _glance(entry: nn.Module, stack: Anatomy, inputs: RawBatch) -> _Glance:
    """Call the model as far as is needed."""
    glance = _Glance()
    in_part = not is_spread(entry)  # where it lets weights go, at its end, that were fetched
    home = home_of(entry)
    with (
        torch.random.fork_rng([home] if home.type == "cuda" else []),  # tries draw the same numbers, and leave none
        torch.no_grad(),
        uncompiled(entry),
        stack.host.prepare(entry),
        suppress(_Enough),
        _looking(stack, glance, in_part),
    ):
        call(entry, inputs)
    return glance


@contextmanager
def _looking(stack: Anatomy, glance: _Glance, in_part: bool) -> Iterator[None]:
    def enter(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        stream = first_input(args, kwargs)
        before, glance.given = glance.given, [one for one in (*args, *kwargs.values()) if isinstance(one, Tensor)]
        if len(glance.entered) == 1 and glance.left:
            first, *others = (_is_same(one, stream) for one in glance.left)
            # Where something is done to it on the way, it may be any that has its shape.
            likely = any(others) or sum(one.shape == stream.shape for one in glance.left) > 1
            glance.other_stream = likely and not first
            glance.beside = tuple(str(tuple(one.shape)) for one in glance.left[1:] if _is_stream(one, glance, before))
        if len(glance.entered) < 2:
            glance.entered.append(stream.clone())  # blocks may write into what they are handed
        if in_part and len(glance.entered) == 2:
            raise _Enough

    def leave(module: nn.Module, args: Any, output: Any) -> None:
        if len(glance.entered) == 1:
            values = output if isinstance(output, tuple | list) else (output,)
            glance.left = tuple(one for one in values if isinstance(one, Tensor))

    with Hooks() as hook:
        for block in stack.blocks.values():
            hook(block.register_forward_pre_hook, enter, with_kwargs=True)
            hook(block.register_forward_hook, leave)
        yield


def _is_stream(one: Tensor, glance: _Glance, before: Sequence[Tensor]) -> bool:
    """Whether the next block is given it too, and it is not what the first was given."""
    handed_on = one.ndim == 3 and any(_is_same(one, other) for other in glance.given)
    return handed_on and one.is_floating_point() and not any(_is_same(one, other) for other in before)


def _is_same(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are one in memory, or one object."""
    return one is other or (one.shape == other.shape and one.data_ptr() == other.data_ptr() != 0)


def _batch_first(entry: nn.Module, stack: Anatomy, stream: Tensor, inputs: RawBatch) -> bool:
    """Whether sequences are the first axis; where shapes leave it open, a pass with one sequence more says it."""
    batch, (first, second) = _batch_size(inputs), stream.shape[:2]
    if first == batch != second:
        return True
    with suppress(Exception):  # each model has its own way to refuse a batch that it was not made for
        glance = _glance(entry, stack, _with_one_more(inputs, batch))
        grown = [now != before for now, before in zip(glance.entered[0].shape[:2], (first, second), strict=True)]
        if sum(grown) == 1:
            return grown[0]
    if second == batch and first % batch:
        return False
    raise expected(
        f"(batch, tokens, dim) or (tokens, batch, dim) at {_pattern(stack)!r}",
        f"{tuple(stream.shape)} for {batch} sequences, of which neither can be told",
        "a batch of another size",
    )


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
    batch_first = stack.host.batch_first(next(iter(stack.blocks.values())))
    stream_BND = stream if batch_first else stream.transpose(0, 1)
    groups, shape = _inputs_by_mask(inputs), stream_BND.shape[:2]

    def becomes(mask: str | None) -> bool:
        changed, column = _changed(groups[mask], shape, inputs.get(mask or ""))
        try:
            other = _glance(entry, stack, {**inputs, **changed}).entered[0]
        except Exception:  # each model has its own way to refuse what it was not made for
            return True
        other_BND = other if batch_first else other.transpose(0, 1)
        if other_BND.shape != stream_BND.shape:
            return True
        return not other_BND[:, column].equal(stream_BND[:, column])

    becoming = [mask for mask in groups if becomes(mask)]
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
    group = groups[becoming[0]]
    if not _ids(group, shape) and _ids(group, stream_BND.shape[::2]):
        shown = f"{tuple(stream.shape)} for ids of {tuple(stream_BND.shape[::2])}"
        raise expected(f"(batch, tokens, dim) at {_pattern(stack)!r}", shown, "a pattern for modules that hand that on")
    return Reads(next(iter(_ids(group, shape) or group)), becoming[0] or "token_mask")


def _ids(group: Mapping[str, Tensor], shape: torch.Size) -> list[str]:
    """Those that have an integer for each token, ids before types and positions."""
    names = [name for name, one in group.items() if one.shape == shape and not one.is_floating_point()]
    return sorted(names, key=lambda name: not name.endswith("input_ids"))


def _changed(group: Mapping[str, Tensor], shape: torch.Size, mask: Any) -> tuple[dict[str, Tensor], slice | int]:
    """Other inputs in place of these, and where tokens must change with them.

    One column of ids, which shows too that tokens are where their ids are: some decoders shift them.
    """
    if ids := _ids(group, shape):
        column = int(mask.long().sum(dim=0).argmax()) if isinstance(mask, Tensor) and mask.shape == shape else 0
        other = group[ids[0]].clone()
        other[:, column] = (other[:, column] - 1).abs()
        return {ids[0]: other}, column
    others = {name: one + 1 if one.is_floating_point() else one.roll(1, dims=-1) for name, one in group.items()}
    return others, slice(None)


def _fits(mask: Any, group: Mapping[str, Tensor], shape: torch.Size) -> bool:
    return any(one.shape[:2] == shape for one in ([mask] if isinstance(mask, Tensor) else group.values()))


def _pattern(stack: Anatomy) -> str:
    return pattern_of(next(iter(stack.blocks)))


@contextmanager
def watch_others(model: nn.Module, stacks: Sequence[Anatomy]) -> Iterator[dict[str, None]]:
    """The paths of blocks with attention that are called outside of all stacks, filled in as they are.

    Example:
        >>> from unsmooth.models import find_anatomy
        >>> layers = [nn.TransformerEncoderLayer(4, 2, 8, batch_first=True) for _ in range(4)]
        >>> model = nn.Sequential(nn.Sequential(*layers[:2]), nn.Sequential(*layers[2:]))
        >>> with watch_others(model, [find_anatomy(model, "0.*")]) as called:
        ...     _ = model(torch.zeros(1, 3, 4))
        >>> list(called)
        ['1.0', '1.1']
    """
    measured = [block for stack in stacks for block in stack.blocks.values()]
    inside = {module for block in measured for module in block.modules()}
    called: dict[str, None] = {}
    with Hooks() as hook:
        for path, block in _blocks_with_attention(model):
            if inside.isdisjoint(block.modules()):
                hook(block.register_forward_pre_hook, lambda *_, path=path: called.update({path: None}))
        yield called


def _blocks_with_attention(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """The children of lists that hold two or more of one class with attention in them, and no such list again."""
    found: dict[str, list[tuple[str, nn.Module]]] = {}
    for path, module in model.named_modules():
        if isinstance(module, nn.ModuleList | nn.Sequential):
            kinds = Counter(type(child) for child in module)
            children = [(f"{path}.{name}".lstrip("."), child) for name, child in module.named_children()]
            if found_here := [one for one in children if kinds[type(one[1])] > 1 and _has_attention(one[1])]:
                found[path] = found_here
    lists = tuple(f"{path}." for path in found)
    return [
        one for blocks in found.values() for one in blocks if not any(path.startswith(f"{one[0]}.") for path in lists)
    ]


def _has_attention(block: nn.Module) -> bool:
    names = (f"{name} {type(module).__name__}".lower() for name, module in block.named_modules())
    return any("attention" in name or "attn" in name for name in names)
