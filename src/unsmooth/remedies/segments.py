"""Tokens of earlier segments, which our decoder with a memory sees as keys and values and runs through no block again.

A call of its block has none of them: only their keys and values are made anew, from what attention read of them.
"""

from __future__ import annotations

from unsmooth.models.block_parts import part
from unsmooth.networks.relative import RelativeAttention
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
