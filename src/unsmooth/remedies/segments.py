"""Tokens of earlier segments, which our decoder with a memory sees as keys and values and runs through no block again.

A call of its block has none of them: only their keys and values are made anew, from what attention read of them.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from unsmooth.models.block_parts import part
from unsmooth.networks.relative import RelativeAttention
from unsmooth.remedies.base import Edit
from unsmooth.remedies.call import Volatile
from unsmooth.remedies.hooks import Hook
from unsmooth.remedies.site import Site


def attention_with_memory(site: Site) -> RelativeAttention | None:
    """The block's attention, where it may see tokens of earlier segments."""
    attention = part(site.block, site.wiring.attention)
    return attention if isinstance(attention, RelativeAttention) else None


def remembers_segments(site: Site) -> str | None:
    """Why a block cannot have what needs more of every token in sight than its key and value, or None where it can."""
    attention = attention_with_memory(site)
    if attention is None or not attention.memory:
        return None
    return (
        f"its attention sees {attention.memory} tokens of earlier segments, of which only keys and values are known; "
        "memory=0 works"
    )


class Recalling(Edit):
    """An edit of the heads that takes a mean over the values in sight, those of the memory among them."""

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self._recalled = Volatile()

    def install(self, site: Site) -> None:
        """Look at what attention is called with, where that may be a memory; undone with the edit's other hooks."""
        attention = attention_with_memory(site)
        if attention is not None:
            attention.register_forward_pre_hook(NoteRecalled(self), with_kwargs=True)

    def note(self, recalled: tuple[Tensor, Tensor] | None) -> None:
        """Keep what `RelativeAttention.recalled` gives, for the attention under way."""
        self._recalled.begin()["values"] = recalled

    def recalled(self) -> tuple[Tensor, Tensor] | None:
        """The sum of the memory's values in this call, and how many they are; None where it has none. Good once."""
        found: tuple[Tensor, Tensor] | None = self._recalled.here().pop("values", None)
        return found


class NoteRecalled(Hook):
    """Before attention: note the values that it is to see in the memory."""

    def __init__(self, edit: Recalling) -> None:
        self.edit = edit

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Called by torch before the module."""
        assert isinstance(module, RelativeAttention), "put on no other"
        self.edit.note(module.recalled(*args, **kwargs))
