"""A model as it is and with remedies (``--with``), or several models: what `scan` and `explain` show side by side."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from unsmooth.errors import UnsmoothError

if TYPE_CHECKING:
    from torch import nn

    from unsmooth.remedies.specification import Wish

T = TypeVar("T")

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
        from unsmooth.models.wire import deep_copy
        from unsmooth.remedies.specification import apply_wishes

        return apply_wishes(deep_copy(model), self.wishes[which], blocks=blocks, seed=seed)

    def check(self, model: nn.Module, blocks: str | None) -> None:
        """Refuse what cannot be applied before anything is measured, but where only data can show that."""
        for which in self:
            try:
                self.make(model, which, blocks)
            except UnsmoothError as error:
                if "not called in a pass" not in str(error):
                    raise


def folders_of(found: Iterable[str | None], out: Path, several: bool = True) -> dict[str | None, Path]:
    """A folder for each of several: the model as it is (None), with remedies, or one of several models.

    Where no more than one was asked for, it has `out` to itself.

    >>> folders = folders_of([None, "deescalate(tau=0.5, place='values')"], Path("out"))
    >>> [folder.as_posix() for folder in folders.values()]
    ['out/before', 'out/with-deescalate-tau-0.5-place-values']
    >>> folders_of(["demo:plain", "demo:smooth"], Path("out"))["demo:plain"].as_posix()
    'out/demo-plain'
    """
    keys = list(found)
    if not several:
        return dict.fromkeys(keys, out)
    # Remedies begin with what matters, paths end with it.
    before, part = ("with-", slice(80)) if None in keys else ("", slice(-80, None))
    folders: dict[str | None, Path] = {}
    for key in keys:
        plain = BEFORE if key is None else before + re.sub(r"[^\w.]+", "-", key).strip("-.")[part]
        folder, number = out / plain, 2
        while folder in folders.values():
            folder, number = out / f"{plain}-{number}", number + 1
        folders[key] = folder
    return folders


def as_one(found: Mapping[str | None, T]) -> object:
    """For JSON: by "before" and "with" for remedies, by "models" for several models."""
    if None in found:
        return {BEFORE: found[None], "with": {which: one for which, one in found.items() if which is not None}}
    return {"models": dict(found)}


def labelled(found: Mapping[str | None, T]) -> dict[str, T]:
    """Under what a reader sees: models by their names, the others as "before" and "with …"."""
    if None not in found:
        return {str(which): one for which, one in found.items()}
    return {BEFORE if which is None else f"with {which}": one for which, one in found.items()}
