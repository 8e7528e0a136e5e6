"""A trained model with data that it understands, for claims about models that somebody else trained."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import nn


@dataclass(frozen=True)
class Specimen:
    """One model to look at.

    Args:
        name: What to call it.
        load: Brings the model.
        data: Brings what `unsmooth.scan` takes: texts, images or batches.
        options: Further options of `scan` and `explain`, such as batch_size.
        ours: Whether it was trained here.
        trained: Whether it was trained at all; random weights stand in where nothing else is at hand.
        lineage: What models have in common of which one was trained from another; by default its own name.
        explained: Folder of a saved explanation, where there is one already.
    """

    name: str
    load: Callable[[], nn.Module]
    data: Callable[[], Any]
    options: dict[str, Any] = field(default_factory=dict)
    ours: bool = False
    trained: bool = True
    lineage: str = ""
    explained: str | None = None
