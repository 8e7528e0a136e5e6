"""Runs that differ only by their seed belong together: one line, one map, one name."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unsmooth.errors import expected
from unsmooth.report.series import PALETTE, printable, unique
from unsmooth.training.trained_run import TrainedRun

_FIRST = ("recipe", "size", "remedies", "data.name", "data.synthetic")
_MOST_PARTS = 3  # differences that a name can carry; beyond, folders have the better names
_UNSPEAKABLE = ("data.digest", "folder")
_ABSENT = object()


@dataclass(frozen=True)
class Variant:
    """One way of training, with every seed that it was run with."""

    name: str
    colour: str
    runs: tuple[TrainedRun, ...]

    @property
    def spread(self) -> str:
        """What its numbers spread over: "3 seeds", or "2 runs" where seeds repeat or are not told; empty for one."""
        if len(self.runs) < 2:
            return ""
        seeds = {str(run.seed) for run in self.runs if run.seed is not None}
        return f"{len(self.runs)} {'seeds' if len(seeds) == len(self.runs) else 'runs'}"


def variants_of(runs: Sequence[TrainedRun]) -> list[Variant]:
    """Runs grouped by everything but their seed, in the order in which they are given."""
    if not runs:
        raise expected("at least one run", "none", "`unsmooth train … --out DIR` first")
    groups: dict[str, list[TrainedRun]] = {}
    for run in runs:
        groups.setdefault(json.dumps(_identity(run), sort_keys=True, default=str), []).append(run)
    names = _names(list(groups.values()))
    return [
        Variant(name, colour_of(index), tuple(group))
        for index, (name, group) in enumerate(zip(names, groups.values(), strict=True))
    ]


def colour_of(index: int) -> str:
    """A colour of the palette; beyond its last, the same ones darker and darker.

    >>> colour_of(0), colour_of(7)
    ('#0072B2', '#004c77')
    """
    turn, place = divmod(index, len(PALETTE))
    colour = PALETTE[place]
    if not turn:
        return colour
    parts = (int(colour[start : start + 2], 16) for start in (1, 3, 5))
    return "#" + "".join(f"{round(part * (2 / 3) ** turn):02x}" for part in parts)


def _identity(run: TrainedRun) -> dict[str, Any]:
    """Everything that makes a run what it is, by path, except the seed."""
    if not run.config and not run.manifest:
        return {"folder": str(run.folder.resolve())}
    chosen = {name: run.setting(name) for name in ("recipe", "size")}
    found = dict(_flat({**run.config, **chosen, "remedies": list(run.remedies)}))
    for name in ("name", "synthetic"):
        found[f"data.{name}"] = run.data.get(name)
    # Synthetic data may be drawn anew for every seed; of real data another digest means other data.
    found["data.digest"] = None if run.data.get("synthetic") else run.data.get("digest")
    return {path: value for path, value in found.items() if path != "seed"}


def _flat(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _names(groups: Sequence[Sequence[TrainedRun]]) -> list[str]:
    """What tells groups apart; the recipe alone where there is one group."""
    taken: set[str] = set()
    if len(groups) == 1:
        return [unique(what_ran(groups[0][0]) or _folder(groups[0]).name, taken)]
    identities = [_identity(group[0]) for group in groups]
    paths = dict.fromkeys([*_FIRST, *(path for one in identities for path in one)])
    differing = [path for path in paths if len({str(one.get(path, _ABSENT)) for one in identities}) > 1]
    differing = [path for path in differing if path not in _UNSPEAKABLE]
    alone = len(differing) == 1
    names = [", ".join(filter(None, (_said(path, one.get(path), alone) for path in differing))) for one in identities]
    if len(differing) > _MOST_PARTS or len(set(names)) < len(names) or not all(names):
        names = [_folder(group).name for group in groups]
    return [unique(name or "run", taken) for name in names]


def what_ran(run: TrainedRun) -> str:
    """Recipe, size and remedies in words; empty where nothing says.

    >>> what_ran(TrainedRun(Path("."), manifest={"recipe": "cifar", "size": "tiny", "remedies": ["rezero"]}))
    'cifar (tiny) with rezero'
    """
    recipe, size = run.setting("recipe"), run.setting("size")
    text = printable(recipe) if recipe else ""
    if text and size and size != "base":
        text += f" ({printable(size)})"
    return text + (f" with {printable(' + '.join(run.remedies))}" if text and run.remedies else "")


def _folder(group: Sequence[TrainedRun]) -> Path:
    """The folder of a run, or the one around its seeds."""
    paths = [run.folder.resolve() for run in group]
    return paths[0] if len(paths) == 1 else paths[0].parent


def _said(path: str, value: Any, alone: bool) -> str:
    """A setting in a name; what is usual goes without saying, unless it is all that differs."""
    if path == "remedies":
        return " + ".join(map(str, value or ())) or "no remedy"
    if path == "data.synthetic":
        return "synthetic data" if value else "real data" if alone else ""
    if path in ("recipe", "data.name"):
        return str(value)
    shown = f"{value:.6g}" if isinstance(value, float) else value
    return f"{path.rsplit('.', 1)[-1]}={shown}"
