"""The stacks of a model as remedies meet them: encoder and decoder, two towers, or the one that most models have."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from unsmooth.errors import UnsmoothError, expected
from unsmooth.models.anatomy import Anatomy, find_stacks
from unsmooth.models.wire import why_unknown
from unsmooth.remedies.base import Edit
from unsmooth.remedies.block import hook_stack, remedies_of, sites_of, stack_of
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
    found = [(one, pattern) for pattern in patterns for one in find_stacks(model, pattern, stack)]
    return [_stack(model, one, pattern) for one, pattern in found if any(map(remedies_of, one.blocks.values()))]


def all_edits(model: nn.Module) -> list[Edit]:
    """Every edit in a model, wherever its blocks are."""
    homes = [home for module in model.modules() if (home := remedies_of(module)) is not None]
    return [edit for home in homes for edit in home.edits().values()]


def find_changeable(model: nn.Module, blocks: str | None = None, stack: str | None = None) -> list[Stack]:
    """The stacks, or the one that was asked for; refuses those whose blocks remedies do not know how to change."""
    found = find_stacks(model, blocks, stack)
    for one in found:
        if (reason := _why_unknown(one)) is not None:
            raise _not_changeable(model, one, reason, found)
    return [_stack(model, one, blocks) for one in found]


def _stack(model: nn.Module, anatomy: Anatomy, pattern: str | None) -> Stack:
    sites = sites_of(anatomy)
    homes = (remedies_of(site.block) for site in sites)
    shared = next((home.shared for home in homes if home is not None), Volatile())
    return Stack(anatomy.stack, stack_of(model, list(anatomy.blocks)), sites, shared, pattern)


def _why_unknown(one: Anatomy) -> str | None:
    """Why the parts of some block are not known, if anything is known of that; None where those of all are."""
    if one.host.wiring is None:
        return ""
    reasons = (why_unknown(block) for block in one.blocks.values())
    return next((reason for reason in reasons if reason is not None), None)


def _not_changeable(model: nn.Module, one: Anatomy, reason: str, found: tuple[Anatomy, ...]) -> UnsmoothError:
    others = [other.stack for other in found if other is not one and _why_unknown(other) is None]
    where = f" in its stack {one.stack!r}" if one.stack else ""
    hint = "the model as its library builds it, with float weights and adapters merged"
    return expected(
        f"blocks that remedies know how to change in {type(model).__name__}",
        f"{one.host.name} blocks{where}" + (f": {reason}" if reason else ""),
        f"stack={others[0]!r}" if others else hint,
    )
