"""The stacks of a model as remedies meet them: encoder and decoder, two towers, or the one that most models have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

from unsmooth.errors import UnsmoothError, expected, unknown_name
from unsmooth.models.anatomy import Anatomy, find_stacks
from unsmooth.models.wire import remember_pass, why_unknown
from unsmooth.remedies.base import Edit
from unsmooth.remedies.block import hook_stack, remedies_of, sites_of, stack_of
from unsmooth.remedies.calibrating import call_on
from unsmooth.remedies.call import Volatile
from unsmooth.remedies.site import Site


@dataclass(frozen=True)
class Stack:
    """One stack of blocks.

    Args:
        name: What it is called where the model has several, such as "encoder"; else nothing.
        module: The smallest module that runs all its blocks in one call.
        sites: Its blocks, counted from 0.
        shared: What its blocks hand each other within one pass.
        pattern: Under which its blocks were found, where one was given.
    """

    name: str
    module: nn.Module
    sites: list[Site]
    shared: Volatile
    pattern: str | None

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
    return Stack(anatomy.stack, stack_of(model, list(anatomy.blocks)), sites, shared, pattern)


def _why_unknown(one: Anatomy) -> str | None:
    """Why the parts of some block are not known, if anything is known of that; None where those of all are."""
    if one.host.wiring is None:
        return f"nothing is known of {one.host.name} blocks"
    reasons = (why_unknown(block) for block in one.blocks.values())
    return next((reason for reason in reasons if reason is not None), None)


def _not_changeable(model: nn.Module, one: Anatomy, reason: str, batch: Any) -> UnsmoothError:
    where = f" in its stack {one.stack!r}" if one.stack else ""
    hint = "the model as its library builds it, with float weights and adapters merged"
    if batch is None and "not called" in reason:
        hint = f"unsmooth.apply(..., batch=...) with what the model is called with (--data in a shell), or {hint}"
    what = f"blocks that remedies know how to change in {type(model).__name__}"
    return expected(what, f"{one.host.name} blocks{where}: {reason}", hint)
