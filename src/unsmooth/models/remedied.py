"""What the other rooms know about remedies: a block may hold edits, which say what they are and what they do to H.

The remedies themselves live in `unsmooth.remedies`, which is built on this room; here they are met by what they offer.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, Protocol

from torch import Tensor, nn

if TYPE_CHECKING:
    from unsmooth.models.value_projection import ValueProjection

# The name under which a block holds its edits.
HOME = "unsmooth"
# What comes before the model type of a remedied model in its config.json.
SAVED_TYPE = "unsmooth_"


class AppliedEdit(Protocol):
    """What one remedy does to one block."""

    name: str
    chosen: dict[str, Any]
    order: int

    def effective(self, values: ValueProjection) -> ValueProjection:
        """The value and output weights with what the edit does to them; the same object where it does nothing."""

    def effective_cross(self, values: ValueProjection) -> ValueProjection:
        """The same of cross-attention."""

    def why_not_foldable(self) -> str | None:
        """Why no weight can hold what it does; None where weights can."""


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


def brought_by_edits(model: nn.Module) -> set[str]:
    """Keys of the state that remedies brought."""
    homes = tuple(f"{path}.{HOME}.".lstrip(".") for path, module in model.named_modules() if edits_of(module))
    return {key for key in model.state_dict() if key.startswith(homes)} if homes else set()


def computed_weights(model: nn.Module) -> dict[str, Tensor]:
    """Weights that a remedy computes: read like any other, but in no state."""
    found = {}
    for path, module in model.named_modules():
        if "weight" not in module._parameters and isinstance(weight := getattr(module, "weight", None), Tensor):
            found[f"{path}.weight".lstrip(".")] = weight.detach()
    return found


def extra_tokens(block: nn.Module, *, left: bool = False) -> int:
    """How many tokens at the end of a block's stream are a remedy's own, so that nobody measures them.

    Args:
        block: A block.
        left: Of what it hands on, rather than of what is inside it: a remedy may take its tokens away there.

    >>> extra_tokens(nn.Linear(2, 2))
    0
    """
    name = "extra_left" if left else "extra_inside"
    return sum(int(getattr(edit, name, 0)) for edit in edits_of(block))


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


def with_edits(
    block: nn.Module, values: ValueProjection, site: Literal["attention", "cross"] = "attention"
) -> ValueProjection:
    """The weights of a block as its edits make them, noting by name those whose work no weight shows."""
    from dataclasses import replace

    unseen = []
    for edit in edits_of(block):
        changed = edit.effective(values) if site == "attention" else edit.effective_cross(values)
        if site == "attention" and changed is values and edit.why_not_foldable() is not None:
            unseen.append(edit.name)
        values = changed
    return replace(values, unseen=(*values.unseen, *unseen)) if unseen else values


def handed_on(block: nn.Module) -> dict[str, Any] | None:
    """What the edits of a stack hand from block to block, as it is now; None for a plain block."""
    shared = getattr(getattr(block, HOME, None), "shared", None)
    return None if shared is None else dict(shared.here())


@contextmanager
def handing_on(block: nn.Module, held: Mapping[str, Any] | None) -> Iterator[None]:
    """Run a block by itself as if `held` had been handed to it, and put back what it changes of that."""
    now = handed_on(block)
    if now is None or held is None:
        yield
        return
    shared = getattr(block, HOME).shared
    try:
        shared.begin().update(held)
        yield
    finally:
        if now:
            shared.begin().update(now)
        else:
            shared.end()
