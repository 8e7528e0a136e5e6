"""Trying a model out: passes that leave nothing behind, and whether lists of blocks are one chain or branches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import torch
from torch import Tensor, nn

from unsmooth.models import Anatomy
from unsmooth.models.hooks import Hooks, aside, uncompiled, whole_sequences
from unsmooth.models.look import Parts, Stream, Trail, argument, at
from unsmooth.models.spread import home_of
from unsmooth.models.wire import wire
from unsmooth.scanning.calling import call
from unsmooth.scanning.data import RawBatch
from unsmooth.scanning.undisturbed import random_kept, tensors_kept


@contextmanager
def quietly(entry: nn.Module) -> Iterator[None]:
    """Run the model so that it leaves nothing behind, and later draws the same random numbers."""
    with ExitStack() as hold:
        for context in (random_kept(home_of(entry)), tensors_kept(entry, weights=False), torch.no_grad()):
            hold.enter_context(context)
        hold.enter_context(uncompiled(entry))
        hold.enter_context(whole_sequences(entry))
        yield


def look_inside(entry: nn.Module, stack: Anatomy, sites: Sequence[str], inputs: RawBatch) -> None:
    """Find the sites inside a stack's blocks, if some are asked for that no pass had reached before there were data."""
    if {*sites} - {"residual"} and stack.is_open:
        with quietly(entry):
            wire(stack.blocks.values(), lambda: call(entry, inputs))


def differs(stacks: Sequence[Anatomy], entry: nn.Module, inputs: RawBatch) -> bool:
    """Whether two passes over the same inputs give other tokens, by what is drawn in them."""
    passes: list[list[Tensor]] = []
    with aside(), quietly(entry), ExitStack() as hold:
        for stack in stacks:
            hold.enter_context(stack.watch(lambda layer, site, x_BND: passes[-1].append(x_BND.double().abs().sum())))
        for _ in range(2):
            passes.append([])
            call(entry, inputs)
    sizes = [torch.stack([one.cpu() for one in found]) for found in passes if found]
    return len(sizes) == 2 and not (sizes[0].shape == sizes[1].shape and torch.allclose(sizes[0], sizes[1], rtol=1e-4))


class Enough(Exception):  # noqa: N818 - it is no error
    """All was seen that was wanted."""


def is_chain(entry: nn.Module, stack: Anatomy, trail: Trail | Parts, stream: Stream, inputs: RawBatch) -> bool:
    """Whether what enters each list of a stack depends on what the list before handed on; branches do not.

    It is tried: where one list ends, its output is changed in a pass that is broken off as the next one is entered.
    """
    for last, first in dict.fromkeys(trail.joints) if isinstance(trail, Trail) else ():
        plain = _after(entry, stack, stream, inputs, last, first, change=False)
        other = _after(entry, stack, stream, inputs, last, first, change=True)
        if plain is not None and other is not None and plain.shape == other.shape and plain.equal(other):
            return False
    return True


def _after(
    entry: nn.Module, stack: Anatomy, stream: Stream, inputs: RawBatch, last: str, first: str, *, change: bool
) -> Tensor | None:
    """What enters one block after another has run, whose output may be changed; None where it cannot be said."""
    found, ran = list[Tensor](), list[bool]()

    def leave(module: nn.Module, args: Any, output: Any) -> None:
        ran.append(True)
        made = at(output, stream.leaves or ())
        if change and isinstance(made, Tensor):  # not by a number or a factor, which a norm would take out again
            made.add_(torch.arange(made.numel(), device=made.device).view(made.shape) % 7)

    def enter(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        if not ran:
            return
        given = argument(args, kwargs, stream.enters) if stream.enters else None
        if isinstance(given, Tensor):
            found.append(given.clone())
        raise Enough

    with suppress(Exception), quietly(entry), Hooks() as hook:
        hook(stack.blocks[last].register_forward_hook, leave)
        hook(stack.blocks[first].register_forward_pre_hook, enter, with_kwargs=True)
        call(entry, inputs)
    return found[0] if found else None
