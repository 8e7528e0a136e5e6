"""The stacks of a model as remedies meet them: encoder and decoder, two towers, or the one that most models have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

from unsmooth.errors import UnsmoothError, expected, unknown_name
from unsmooth.models.anatomy import Anatomy, find_stacks
from unsmooth.models.wire import attends, remember_pass, why_unknown
from unsmooth.remedies.base import Edit
from unsmooth.remedies.block import hook_stack, remedies_of, sites_of, stack_of
from unsmooth.remedies.calibrating import call_on
from unsmooth.remedies.call import Volatile
from unsmooth.remedies.layers import Layers, choose_layers
from unsmooth.remedies.site import Site


@dataclass(frozen=True)
class Stack:
    """One stack of blocks.

    Args:
        name: What it is called where the model has several, such as "encoder"; else nothing.
        module: The smallest module that runs all its blocks in one call.
        sites: Its blocks that attend, counted from 0 with those that do not.
        depth: How many blocks it has.
        shared: What its blocks hand each other within one pass.
        pattern: Under which its blocks were found, where one was given.
    """

    name: str
    module: nn.Module
    sites: list[Site]
    depth: int
    shared: Volatile
    pattern: str | None

    def choose(self, layers: Layers) -> list[Site]:
        """The blocks of these layers: of several meant at once those that attend, of indices each one."""
        by_index = {site.index: site for site in self.sites}
        found = choose_layers(layers, self.depth)
        if layers is None or isinstance(layers, slice | float):
            found = [index for index in found if index in by_index]
        absent = next((index for index in found if index not in by_index), None)
        if absent is not None or not found:
            got = repr(layers) if absent is None else f"{absent}, a block without attention"
            raise expected("layers that attend", got, f"layers={[*by_index]}")
        return [by_index[index] for index in found]

    def hook(self) -> None:
        """Have each pass begin and end as the edits need it that are in its blocks now."""
        hook_stack(self.module, self.shared)


def find_remedied(model: nn.Module, blocks: str | None = None, stack: str | None = None) -> list[Stack]:
    """The stacks, or the one that was asked for, with remedies in some of their blocks.

    Without `blocks` those too that remedies were given by a pattern.
    """
    patterns: list[str | None] = [blocks]
    if blocks is None and stack is None and isinstance(model, nn.Module):
        patterns = list(dict.fromkeys(edit.pattern for edit in all_edits(model))) or [None]
    found = [(one, pattern) for pattern in patterns for one in _chosen(model, pattern, stack)]
    return [_stack(model, one, pattern) for one, pattern in found if any(map(remedies_of, one.blocks.values()))]


def all_edits(model: nn.Module) -> list[Edit]:
    """Every edit in a model, wherever its blocks are."""
    homes = [home for module in model.modules() if (home := remedies_of(module)) is not None]
    return [edit for home in homes for edit in home.edits().values()]


def find_changeable(
    model: nn.Module, blocks: str | None = None, stack: str | None = None, batch: Any = None
) -> tuple[list[Stack], dict[str, str]]:
    """The stacks that remedies know how to change, or the one that was asked for, and why not of each other one.

    Raises:
        UnsmoothError: There is none.
    """
    found = _chosen(model, blocks, stack)
    if batch is not None:
        for one in found:
            remember_pass(one.blocks.values(), _called, model, batch)
    reasons = [_why_unknown(one) for one in found]
    able = [_stack(model, one, blocks) for one, reason in zip(found, reasons, strict=True) if reason is None]
    if not able:
        # What stands in the way of a stack that runs says more.
        one, reason = min(zip(found, map(str, reasons), strict=True), key=lambda pair: "not called" in pair[1])
        raise _not_changeable(model, one, reason, batch)
    return able, {one.stack: reason for one, reason in zip(found, reasons, strict=True) if reason is not None}


def _called(model: nn.Module, batch: Any) -> None:
    try:
        call_on(model, batch)
    except Exception as error:  # a model may say anything to what it is not made for
        said = f"{type(error).__name__}: {error}".partition("\n")[0]
        hint = "what its forward takes, on its device"
        raise expected(f"a batch that {type(model).__name__} can be called with", f"its {said}", hint) from error


def _chosen(model: nn.Module, blocks: str | None, stack: str | None) -> tuple[Anatomy, ...]:
    if blocks is not None and stack is not None:
        raise expected("either blocks or stack", f"blocks={blocks!r} and stack={stack!r}", f"stack={stack!r} alone")
    found = find_stacks(model, blocks)
    if stack is None:
        return found
    if len(found) == 1:
        name = type(model).__name__
        raise expected(f"no stack, as {name} has one only", f"stack={stack!r}", "leaving it out")
    names = [one.stack for one in found]
    if stack not in names:
        raise unknown_name("stack", str(stack), names)
    return tuple(one for one in found if one.stack == stack)


def _stack(model: nn.Module, anatomy: Anatomy, pattern: str | None) -> Stack:
    sites = sites_of(anatomy)
    homes = (remedies_of(site.block) for site in sites)
    shared = next((home.shared for home in homes if home is not None), Volatile())
    module = stack_of(model, list(anatomy.blocks))
    return Stack(anatomy.stack, module, sites, len(anatomy.blocks), shared, pattern)


def _why_unknown(one: Anatomy) -> str | None:
    """Why the parts of some block that attends are not known; None where those of all are.

    Where no block is known, why the first is not.
    """
    if one.host.wiring is None:
        return f"nothing is known of {one.host.name} blocks"
    reasons = {path: why_unknown(block) for path, block in one.blocks.items()}
    known = None in reasons.values()
    unknown = {path: reason for path, reason in reasons.items() if reason is not None}
    return next((reason for path, reason in unknown.items() if not known or attends(one.blocks[path])), None)


def _not_changeable(model: nn.Module, one: Anatomy, reason: str, batch: Any) -> UnsmoothError:
    where = f" in its stack {one.stack!r}" if one.stack else ""
    hint = "the model as its library builds it, with float weights and adapters merged"
    if batch is None and "not called" in reason:
        hint = f"unsmooth.apply(..., batch=...) with what the model is called with (--data in a shell), or {hint}"
    what = f"blocks that remedies know how to change in {type(model).__name__}"
    return expected(what, f"{one.host.name} blocks{where}: {reason}", hint)
