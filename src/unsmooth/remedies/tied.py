"""Weights and modules that several hold: what one block's remedy does to them, every other holder would have too."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import nn

from unsmooth.errors import UnsmoothError, expected
from unsmooth.remedies.base import Edit
from unsmooth.remedies.site import Site


def check_installs(model: nn.Module, sites: Iterable[Site], chosen: Sequence[tuple[Site, Edit]]) -> None:
    """Refuse edits that would change, as they are installed, weights or modules which are not their block's alone.

    Args:
        model: The whole model.
        sites: Every block of its stacks.
        chosen: The edits, with the block that each is for.
    """
    blocks = [site.block for site in sites]
    tied, shared = tied_weights(model, blocks), shared_modules(blocks)
    for site, edit in chosen:
        name = _first(site, edit.writes(site), tied)
        if name is not None:
            raise UnsmoothError(
                f"{edit.name} cannot be applied to {site.host.name} block {site.path!r}: it writes {name!r}, which is "
                "also a weight of another module, so that it would be written for both."
            )
        altered = {id(module) for module in edit.alters(site)} & shared
        name = next((name for name, module in site.block.named_modules() if id(module) in altered), None)
        if name is not None:
            raise UnsmoothError(
                f"{edit.name} cannot be applied to {site.host.name} block {site.path!r}: it changes {name!r}, which is "
                "also a part of another block, so that it would be changed for both."
            )


def check_folds(model: nn.Module, sites: Iterable[Site], found: Sequence[tuple[Site, Edit]]) -> None:
    """Refuse to fold edits into weights that are not their block's alone; the arguments are the same."""
    tied = tied_weights(model, [site.block for site in sites])
    for site, edit in found:
        name = _first(site, edit.folds_into(site), tied)
        if name is not None:
            raise expected(
                "remedies that fold into weights of one block each",
                f"{edit.name} in block {site.path!r}, whose {name!r} is also a weight of another module",
                "unsmooth.remedies.save(model, folder), which keeps remedies beside the weights",
            )


def tied_weights(model: nn.Module, blocks: Iterable[nn.Module]) -> set[int]:
    """The ids of parameters that several modules hold, or one module that is a part of several blocks.

    A block that is called again and again is one block, whatever its paths.

    >>> one, two = nn.Linear(2, 2), nn.Linear(2, 2)
    >>> two.weight = one.weight
    >>> model = nn.Sequential(one, two, one)
    >>> tied_weights(model, model) == {id(one.weight)}
    True
    """
    holders: dict[int, set[tuple[int, int, str]]] = {}
    inside: set[int] = set()

    def note(module: nn.Module, block: int) -> None:
        for name, parameter in module._parameters.items():
            holders.setdefault(id(parameter), set()).add((block, id(module), name))

    for block in blocks:
        for module in block.modules():
            inside.add(id(module))
            note(module, id(block))
    for module in model.modules():
        if id(module) not in inside:
            note(module, id(None))
    holders.pop(id(None), None)  # a bias that is not there
    return {parameter for parameter, found in holders.items() if len(found) > 1}


def shared_modules(blocks: Iterable[nn.Module]) -> set[int]:
    """The ids of modules that are a part of several blocks.

    >>> one, two = nn.Linear(2, 2), nn.Linear(2, 2)
    >>> shared_modules([nn.Sequential(one, two), nn.Sequential(one)]) == {id(one)}
    True
    """
    holders: dict[int, set[int]] = {}
    for block in blocks:
        for module in block.modules():
            holders.setdefault(id(module), set()).add(id(block))
    return {module for module, found in holders.items() if len(found) > 1}


def _first(site: Site, weights: Iterable[nn.Parameter], tied: set[int]) -> str | None:
    """The name of the first of these weights of a block that is tied."""
    found = {id(weight) for weight in weights} & tied
    return next((name for name, weight in site.block.named_parameters() if id(weight) in found), None)
