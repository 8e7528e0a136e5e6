"""Which measurements there are, and a file of those that are done: a run that stops goes on where it was."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from unsmooth.files import finite, write_whole

MODELS = ("all-MiniLM-L6-v2", "all-mpnet-base-v2")
TOKENS = (128, 512)
TEXTS = (64, 512)
RIVAL, OURS = "embedding-condensation", "unsmooth, same job"
# Which file of `tools` knows each way.
TOOL_OF = {
    RIVAL: "embedding_condensation",
    OURS: "unsmooth_scan",
    "unsmooth, default scan": "unsmooth_scan",
    "torchmetrics": "torchmetrics_pairwise",
    "stable-pretraining RankMe": "stable_pretraining",
    "unsmooth, effective rank": "unsmooth_scan",
    "plain": "unsmooth_scan",
}
TOOLS = ("unsmooth_scan", "embedding_condensation", "torchmetrics_pairwise", "stable_pretraining", "weightwatcher")
# unsmooth reads texts in batches by default; one at a time is what the others do.
BATCHES = {OURS: (16, 1), "unsmooth, default scan": (16,), "plain": (16, 1)}
ONLY_FEW_TEXTS = ("unsmooth, default scan", "torchmetrics", "plain")
RANKS = ("stable-pretraining RankMe", "unsmooth, effective rank")


@dataclass(frozen=True)
class Cell:
    """One measurement of cost.

    Args:
        model: Name of the trained model.
        tokens: Tokens of each text.
        texts: How many texts.
        way: What is measured; see `TOOL_OF`.
        batch: Texts that go through the model together.
    """

    model: str
    tokens: int
    texts: int
    way: str
    batch: int = 1

    @property
    def key(self) -> str:
        """What the file of results calls it.

        >>> Cell("all-MiniLM-L6-v2", 128, 64, "plain").key
        'all-MiniLM-L6-v2 | 128 | 64 | plain | 1'
        """
        return " | ".join(map(str, asdict(self).values()))

    @property
    def rounds(self) -> int:
        """Short measurements are repeated; in long ones the steps themselves are repetition enough."""
        return 5 if self.texts * self.tokens <= 64 * 128 else 1


def plan(models: Sequence[str], lengths: Sequence[int], counts: Sequence[int]) -> Iterator[Cell]:
    """All cells of these sizes, the quick ones first."""
    for texts in sorted(counts):
        for model in models:
            for tokens in lengths:
                yield from _of_size(model, tokens, texts, few=texts == min(counts))


def _of_size(model: str, tokens: int, texts: int, few: bool) -> Iterator[Cell]:
    for way in (RIVAL, OURS, *(ONLY_FEW_TEXTS if few else ())):
        for batch in BATCHES.get(way, (1,)):
            yield Cell(model, tokens, texts, way, batch)
    # A singular value decomposition per text and layer takes long enough to be clear on the small model.
    if few and model == MODELS[0]:
        for way in RANKS:
            yield Cell(model, tokens, texts, way)


class Store:
    """A json file with one entry per cell, whole after every one of them."""

    def __init__(self, path: Path, what: str) -> None:
        self.path = path
        self.content: dict[str, Any] = {"what": what, "cells": {}}
        if path.exists():
            self.content = json.loads(path.read_text(encoding="utf-8"))

    def __contains__(self, key: str) -> bool:
        return key in self.content["cells"]

    def put(self, key: str, value: Any) -> None:
        """Keep one entry."""
        self.content["cells"][key] = finite(value)
        self.write()

    def write(self) -> None:
        """Write the file as it is now."""
        write_whole(self.path, json.dumps(self.content, indent=1, allow_nan=False, ensure_ascii=False) + "\n")
