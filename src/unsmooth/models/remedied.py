"""What the other rooms know about remedies: a block may hold edits, which say what they are and what they do to H.

The remedies themselves live in `unsmooth.remedies`, which is built on this room; here they are met by what they offer.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from torch import nn

if TYPE_CHECKING:
    from unsmooth.models.value_projection import ValueProjection

# The name under which a block holds its edits.
HOME = "unsmooth"


class AppliedEdit(Protocol):
    """What one remedy does to one block."""

    name: str
    chosen: dict[str, Any]
    order: int

    def effective(self, values: ValueProjection) -> ValueProjection:
        """The value and output weights with what the edit does to them; the same object where it does nothing."""


def edits_of(block: nn.Module) -> list[AppliedEdit]:
    """The edits that a block holds, in the order they were applied; none for a plain one.

    >>> edits_of(nn.Linear(2, 2))
    []
    """
    edits = getattr(getattr(block, HOME, None), "edits", None)
    return list(edits().values()) if callable(edits) else []


def is_remedied(model: nn.Module) -> bool:
    """Whether any block of a model holds an edit."""
    return any(edits_of(module) for module in model.modules())


def parameters_of_edits(model: nn.Module) -> set[str]:
    """Names of the parameters that remedies brought."""
    homes = [f"{path}.{HOME}.".lstrip(".") for path, module in model.named_modules() if edits_of(module)]
    return {name for name, _ in model.named_parameters() if name.startswith(tuple(homes))} if homes else set()


def describe_remedies(blocks: Mapping[str, nn.Module]) -> list[dict[str, Any]]:
    """Name, options and layers (from 0) of every remedy in these blocks, in the order applied."""
    found: dict[int, dict[str, Any]] = {}
    for index, block in enumerate(blocks.values()):
        for edit in edits_of(block):
            one = found.setdefault(edit.order, {"name": edit.name, "options": dict(edit.chosen), "layers": []})
            one["layers"].append(index)
    return [found[order] for order in sorted(found)]


def written_out(edit: AppliedEdit) -> str:
    """An edit as text that is the same wherever the same was applied: what it does beyond its parameters."""
    return json.dumps([edit.name, edit.chosen], sort_keys=True, ensure_ascii=False, default=repr)


def with_edits(block: nn.Module, values: ValueProjection) -> ValueProjection:
    """The weights of a block as its edits make them, noting by name those whose work no weight shows."""
    from dataclasses import replace

    unseen = []
    for edit in edits_of(block):
        changed = edit.effective(values)
        if changed is values:
            unseen.append(edit.name)
        values = changed
    return replace(values, unseen=tuple(unseen)) if unseen else values


def handed_on(block: nn.Module) -> dict[str, Any] | None:
    """What the edits of a stack hand from block to block, as it is now; None for a plain block."""
    held = getattr(getattr(getattr(block, HOME, None), "shared", None), "held", None)
    return dict(held) if isinstance(held, dict) else None


@contextmanager
def handing_on(block: nn.Module, held: Mapping[str, Any] | None) -> Iterator[None]:
    """Run a block by itself as if `held` had been handed to it, and put back what it changes of that."""
    now = handed_on(block)
    if now is None or held is None:
        yield
        return
    place = getattr(block, HOME).shared.held
    try:
        _refill(place, held)
        yield
    finally:
        _refill(place, now)


def _refill(place: dict[str, Any], content: Mapping[str, Any]) -> None:
    place.clear()
    place.update(content)
