"""A model as it is and with remedies, side by side: what ``--with`` does in `scan` and `explain`."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn

    from unsmooth.remedies.specification import Wish

BEFORE = "before"


class Variants:
    """The remedies that were asked for by ``--with``: each text for itself, on a copy of the model.

    Args:
        texts: One remedy each, or several joined by +; read at once, so that a typing error costs nothing.
    """

    def __init__(self, texts: Sequence[str] | None) -> None:
        self.wishes: dict[str, tuple[Wish, ...]] = {}
        if texts:
            from unsmooth.remedies.specification import parse_remedies

            for text in texts:
                wishes = parse_remedies(text)
                self.wishes[" + ".join(map(str, wishes))] = wishes

    def __bool__(self) -> bool:
        return bool(self.wishes)

    def __iter__(self) -> Iterator[str]:
        return iter(self.wishes)

    def make(self, model: nn.Module, which: str, blocks: str | None, seed: int = 0) -> nn.Module:
        """A copy of the model with the remedies called `which`."""
        from unsmooth.remedies.specification import apply_wishes

        return apply_wishes(copy.deepcopy(model), self.wishes[which], blocks=blocks, seed=seed)

    def check(self, model: nn.Module, blocks: str | None) -> None:
        """Refuse what cannot be applied before anything is measured."""
        for which in self:
            self.make(model, which, blocks)


def folder_of(which: str, taken: Sequence[Path], out: Path) -> Path:
    """A folder for the model with remedies, named after them.

    >>> folder_of("deescalate(tau=0.5, place='values')", [], Path("out")).as_posix()
    'out/with-deescalate-tau-0.5-place-values'
    """
    plain = re.sub(r"[^\w.]+", "-", which).strip("-.")[:80]
    folder, number = out / f"with-{plain}", 2
    while folder in taken:
        folder, number = out / f"with-{plain}-{number}", number + 1
    return folder
