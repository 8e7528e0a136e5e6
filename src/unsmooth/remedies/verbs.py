"""`apply`, `undo`, `fold`: one-line changes of a model that its user already has."""

from __future__ import annotations

import copy
import uuid
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from unsmooth.errors import UnsmoothError, expected
from unsmooth.remedies.base import Edit
from unsmooth.remedies.block import HOME, REPLACED, add_edit, drop_edit, remedies_of
from unsmooth.remedies.checking import (
    check_handed_on,
    check_known,
    check_leak,
    check_new,
    check_norms,
    check_plain,
    check_rows,
    check_sites,
    check_values,
    check_whole,
    check_windows,
    checked_options,
    edits_at,
)
from unsmooth.remedies.extending import extend, shrink
from unsmooth.remedies.layers import Layers
from unsmooth.remedies.listing import find_remedy
from unsmooth.remedies.opening import close_up, open_up
from unsmooth.remedies.site import Site
from unsmooth.remedies.stack import Stack, all_edits, find_changeable, find_remedied
from unsmooth.remedies.tied import check_folds, check_installs

M = TypeVar("M", bound=nn.Module)


@dataclass(frozen=True)
class Applied:
    """One remedy as it was applied.

    Args:
        name: Its name.
        options: The options it was given.
        layers: The blocks it is in.
        report: Numbers that it gives about itself, by layer.
        stack: The stack that they are in, where the model has several.
        blocks: The pattern under which the blocks were found, where one was given.
    """

    name: str
    options: Mapping[str, Any]
    layers: tuple[int, ...]
    report: Mapping[int, Mapping[str, float]]
    stack: str = ""
    blocks: str | None = None


def apply(
    model: M,
    name: str,
    *,
    layers: Layers = None,
    blocks: str | None = None,
    stack: str | None = None,
    allow_leak: bool = False,
    batch: Any = None,
    **options: Any,
) -> M:
    """Change a model in place by a remedy, and return it.

    Apply before the optimiser is built, before `torch.compile`, DDP and FSDP: a remedy may bring new parameters.
    Remedies stack; each acts in the order applied.

    Args:
        model: Any model with blocks of a known family.
        name: A remedy, as `unsmooth.remedies.names()` lists them.
        layers: Which blocks: None for all, indices, a slice, or a fraction of depth (0.5 is the first half, -0.5 the
            last). Counted in each stack from 0.
        blocks: Pattern over module paths, for a part of a model.
        stack: One of a model's stacks, such as "encoder" or "vision"; by default all that can have the remedy, with a
            warning that names the others and why they cannot.
        allow_leak: Apply to a causal model what would let tokens see later ones; warns.
        batch: What the model is called with, as in `unsmooth.remedies.calibrate`: it is run in evaluation mode, and the
            parts of its blocks are proved on what they are called with. Needed where a model does not say what it
            takes, unless `unsmooth.scan` or `unsmooth.explain` has shown it data; saved and loaded, it needs it again.
        **options: The remedy's own, as `unsmooth.remedies.describe(name)` lists them.

    Raises:
        UnsmoothError: Something does not fit; the model is as it was.

    Example:
        >>> layer = nn.TransformerEncoderLayer(4, nhead=2, batch_first=True)
        >>> model = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        >>> model = apply(model, "deescalate", tau=0.5, layers=slice(1, None))
        >>> [(done.name, done.layers, done.options["tau"]) for done in applied(model)]
        [('deescalate', (1, 2), 0.5)]
        >>> applied(undo(model))
        []
    """
    kind = find_remedy(name)
    options = checked_options(kind, options)
    if isinstance(model, nn.Module):
        check_plain(model)
    found, left = find_changeable(model, _pattern(blocks), stack, batch)
    stacks, chosen, edits = list[Stack](), list[tuple[Stack, Site]](), list[Edit]()
    for one in found:
        sites = one.choose(layers)
        check_new(kind, sites)
        try:
            made = _made(kind, sites, options)
        except UnsmoothError as error:
            if not stacks and one is found[-1]:
                raise
            left[one.name] = str(error)
            continue
        stacks, chosen, edits = [*stacks, one], [*chosen, *((one, site) for site in sites)], [*edits, *made]
    check_leak(kind, [site for _, site in chosen], options, allow_leak)
    check_installs(model, _sites(found), [(site, edit) for (_, site), edit in zip(chosen, edits, strict=True)])
    order, text = 1 + _last_order(model), new_mark()
    for edit in edits:
        edit.chosen, edit.order, edit.pattern = dict(options), order, blocks
        edit.would_leak = kind.leaks(options) and not allow_leak
    for one in stacks:
        check_handed_on(one.sites, {site.path: edit for (_, site), edit in zip(chosen, edits, strict=True)})
    try:
        for (one, site), edit in zip(chosen, edits, strict=True):
            _put_in(site, edit, one)
        for one in stacks:
            mine = [(edit, site) for (other, site), edit in zip(chosen, edits, strict=True) if other is one]
            kind.arrange([edit for edit, _ in mine], [site for _, site in mine])
        for (_, site), edit in zip(chosen, edits, strict=True):
            mark(site.block, f"{text} {_constants(edit)}")
    except BaseException:
        for one, site in reversed(chosen):
            if kind.name in edits_at(site):
                _take_out(site, kind.name, one, _remove)
        raise
    finally:
        for one in stacks:
            one.hook()
    for one in stacks:
        if 0 < len(one.sites) < one.depth:
            attend = ", ".join(str(site.index) for site in one.sites)
            what = f"of {one.depth} layers only {attend} attend, and the others are left as they are"
            warnings.warn(f"{kind.name}: {what}.", UserWarning, stacklevel=2)
    for name, reason in left.items():
        warnings.warn(f"{kind.name} is not applied to the stack {name!r}: {reason}", UserWarning, stacklevel=2)
    return model


def _made(kind: type[Edit], sites: list[Site], options: Mapping[str, Any]) -> list[Edit]:
    """An edit for each block of a stack, if all of them can have one; building it checks its options, no more."""
    check_sites(kind, sites, options)
    edits = [kind(site, **options) for site in sites]
    for site, edit in zip(sites, edits, strict=True):
        check_values(site, edit)
        check_windows(site, edit)
        check_rows(site, edit)
        check_norms(site, edit)
    return edits


def undo(model: M, *, blocks: str | None = None, stack: str | None = None) -> M:
    """Take every remedy out of a model, in place, and return it.

    Weights that a remedy replaced come back as they were when it was applied, so a model in which nothing was trained
    is the same to the bit. Weights that were trained and that no remedy replaced stay as trained.
    """
    stacks = find_remedied(model, _pattern(blocks), stack)
    check_whole(model)
    check_known(_sites(stacks))
    for one, site, name in reversed(_everything(stacks)):
        _take_out(site, name, one, _remove)
    for one in stacks:
        one.hook()
    return model


def fold(model: M, *, blocks: str | None = None, stack: str | None = None) -> M:
    """Write every remedy of a model into its ordinary weights, in place, and return it.

    The model gives the same outputs as before, has no trace of a remedy left, costs what the plain model costs, and
    saves and loads as it always did.

    Raises:
        UnsmoothError: One of them does not fold; the model is as it was.
    """
    stacks = find_remedied(model, _pattern(blocks), stack)
    found = _everything(stacks)
    if not found:
        raise expected("a model with remedies applied", "a plain one", "unsmooth.apply(model, name) first")
    check_whole(model)
    for _, site, name in found:
        reason = edits_at(site)[name].why_not_foldable()
        if reason is not None:
            raise expected(
                "remedies that fold into weights",
                f"{name} in block {site.path!r}, which does not: {reason}",
                "unsmooth.remedies.save(model, folder), which keeps remedies beside the weights",
            )
    check_folds(model, _sites(stacks), [(site, edits_at(site)[name]) for _, site, name in found])
    for one, site, name in sorted(found, key=lambda entry: edits_at(entry[1])[entry[2]].fold_order):
        _take_out(site, name, one, lambda edit, site: edit.fold(site))
    for one in stacks:
        one.hook()
    return model


def applied(model: nn.Module, *, blocks: str | None = None, stack: str | None = None) -> list[Applied]:
    """The remedies a model has, in the order they were applied, for each of its stacks."""
    by_order: dict[tuple[int, str], list[tuple[Site, Edit]]] = {}
    for one, site, name in _everything(find_remedied(model, _pattern(blocks), stack)):
        edit = edits_at(site)[name]
        by_order.setdefault((edit.order, one.name), []).append((site, edit))
    return [
        Applied(
            name=found[0][1].name,
            options=dict(found[0][1].chosen),
            layers=tuple(site.index for site, _ in found),
            report={site.index: report for site, edit in found if (report := dict(edit.report()))},
            stack=name,
            blocks=found[0][1].pattern,
        )
        for (_, name), found in by_order.items()
    ]


def replaced(model: nn.Module) -> dict[str, Tensor]:
    """What `undo` would put back, under keys of its own: the weights that the model has not now, or has otherwise.

    Of one block at a time there is a second copy in memory.
    """
    found: dict[str, Tensor] = {}
    everything = _everything(find_remedied(model))
    check_known([site for _, site, _ in everything])
    for site in {id(site.block): site for _, site, _ in everything}.values():
        plain = copy.deepcopy(site.block)
        for one, other, name in reversed(everything):
            if other.block is site.block:
                _take_out(replace(other, block=plain), name, replace(one, module=nn.Module()), _remove)
        now = site.block.state_dict()
        for key, value in plain.state_dict().items():
            if isinstance(value, Tensor) and (key not in now or not torch.equal(value, now[key])):
                found[".".join(filter(None, (site.path, HOME, REPLACED, key)))] = value
    return found


def _pattern(blocks: Any) -> str | None:
    if blocks is None or isinstance(blocks, str):
        return blocks
    hint = "blocks='encoder.layer.*', or layers=[0, 1] for some of them"
    raise expected("blocks as a pattern over module paths", repr(blocks), hint)


def _put_in(site: Site, edit: Edit, stack: Stack) -> None:
    first = remedies_of(site.block) is None
    before = open_up(site, stack.module) if first else {}
    add_edit(site, edit.name, edit, stack.shared)
    home = remedies_of(site.block)
    if first and home is not None:
        home.before = before
    edit.install(site)


def _take_out(site: Site, name: str, stack: Stack, how: Callable[[Edit, Site], None]) -> None:
    home = remedies_of(site.block)
    assert home is not None, "only called for blocks that have edits"
    how(home.edits()[name], site)
    drop_edit(site, name)
    if remedies_of(site.block) is None:
        close_up(site, stack.module, home.before)
        unmark(site.block)
    else:
        mark(site.block, f"without {name}")


def _constants(edit: Edit) -> str:
    """What torch.compile would take for the same in blocks of one class: all about an edit but its parameters."""
    plain = {key: value for key, value in vars(edit).items() if isinstance(value, int | float | str | tuple | None)}
    shapes = {key: tuple(value.shape) for key, value in edit.state_dict().items()}
    return f"{plain} {shapes}"


def _remove(edit: Edit, site: Site) -> None:
    edit.remove(site)  # by the instance: `Edit.remove` would pass over what its class overrides


def _everything(stacks: list[Stack]) -> list[tuple[Stack, Site, str]]:
    """Every remedy in every site, in the order applied; once where a block is in several of the stacks."""
    found: dict[tuple[int, str], tuple[Stack, Site, str]] = {}
    for stack in stacks:
        for site in stack.sites:
            for name, edit in edits_at(site).items():
                if (id(site.block), name) not in found or edit.pattern == stack.pattern:
                    found[id(site.block), name] = (stack, site, name)
    return sorted(found.values(), key=lambda entry: edits_at(entry[1])[entry[2]].order)


def _sites(stacks: list[Stack]) -> list[Site]:
    return [site for stack in stacks for site in stack.sites]


def _last_order(model: nn.Module) -> int:
    """Of what was applied last, in whatever part of the model."""
    return max((edit.order for edit in all_edits(model)), default=-1)


_MARK = "_unsmooth_mark"


def new_mark() -> str:
    """A mark that no other block has, in this process or another."""
    return uuid.uuid4().hex


def mark(block: nn.Module, text: str) -> None:
    """Give `block` the class that extends its own by a mark; blocks with the same marks share what is compiled.

    A second mark adds to the first.

    >>> one, two, three = nn.Linear(1, 1), nn.Linear(1, 1), nn.Linear(1, 1)
    >>> mark(one, "a"), mark(two, "a"), mark(three, "b")
    (None, None, None)
    >>> type(one) is type(two), type(one) is type(three), type(one).__name__, isinstance(one, nn.Linear)
    (True, False, 'Linear', True)
    >>> unmark(one)
    >>> type(one) is nn.Linear
    True
    """
    earlier = getattr(type(block), _MARK, "")
    unmark(block)
    extend(block, _marked, f"{earlier}+{text}" if earlier else text)


def unmark(block: nn.Module) -> None:
    """Give `block` its own class back."""
    if _MARK in vars(type(block)):
        shrink(block)


def _marked(text: str) -> dict[str, Any]:
    return {_MARK: text}
