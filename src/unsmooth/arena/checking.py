"""Whether results that are there can stand beside those that are wanted: of the same settings, on the same data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from unsmooth.arena.budget import Settled
from unsmooth.arena.choosing import wanted_runs
from unsmooth.arena.folder import ArenaFolder
from unsmooth.arena.plan import Entrant, Plan
from unsmooth.errors import UnsmoothError, expected
from unsmooth.evidence.keeping import differing_settings
from unsmooth.training import Config, RunFolder
from unsmooth.training.plain import to_plain


class OtherResultsError(UnsmoothError):
    """The folder has results that cannot stand beside those that are wanted."""


def other_results(folder: ArenaFolder, what: str, got: str, first: str = "") -> OtherResultsError:
    """Say so, with what can be done about it.

    Args:
        folder: Of the arena.
        what: What would do.
        got: What is there.
        first: What to try before another folder.
    """
    # Both: runs are taken up where there are no results, and have settings of their own.
    rest = f"another --out, or removing {folder.path / 'results'} and {folder.runs}"
    return OtherResultsError(str(expected(what, got, f"{first}, {rest}" if first else rest)))


def check_settings(plan: Plan, folder: ArenaFolder, entrant: Entrant, base: Settled) -> None:
    """Refuse results of an entrant that have other settings than those of now."""
    for run, (rate, seed) in wanted_runs(plan, folder, entrant).items():
        if (found := folder.outcome(entrant, run)) is None:
            continue
        if differing := differing_settings(found.config, plan.settings(entrant, base, rate, seed)):
            got, first = f"others for {entrant.place}/{run} ({', '.join(differing)})", ""
            if "data.hold_out" in differing:
                first = f"--hold-out {found.config['data'].get('hold_out', 0.0):g} as then"  # younger than some results
            raise other_results(folder, "results with the settings of now", got, first)


def check_begun(folder: ArenaFolder, entrant: Entrant, wanted: Mapping[str, Config]) -> None:
    """Refuse to take up runs that were begun with other settings, in words that fit an arena.

    Args:
        folder: Of the arena.
        entrant: Whose runs.
        wanted: Name of a run, such as "seed-0", to what it is to be.
    """
    for run, config in wanted.items():
        path = folder.runs / entrant.place / run
        if not (path / "config.json").exists():
            continue
        if differing := differing_settings(to_plain(RunFolder(path).config()), config, everything=True):
            got = f"one with others ({', '.join(differing)})"
            what = f"a run with the settings of now in {path}"
            raise other_results(folder, what, got, f"the settings of then, removing {path}")


def check_one_data(plan: Plan, folder: ArenaFolder, model: str) -> None:
    """Refuse results of a model on different data: no comparison of them would say anything about remedies."""
    first: dict[float, tuple[str, Mapping[str, Any]]] = {}
    for place, data in _data(plan, folder, model):
        before, known = first.setdefault(_held_out(data), (place, data))
        if known["digest"] != data["digest"]:
            got = f"{_called(known)} for {before}, {_called(data)} for {place}"
            raise other_results(folder, f"all results of {model} on the same data", got)


def check_data(plan: Plan, folder: ArenaFolder, model: str, data: Mapping[str, Any]) -> bool:
    """Refuse results of a model on other data than these, as a task describes them.

    Returns:
        Whether any were on the same samples: those of runs that hold some out may be known by other names.
    """
    same = False
    for place, known in _data(plan, folder, model):
        if _held_out(known) != _held_out(data):
            continue
        if known["digest"] != data.get("digest"):
            got = f"{_called(known)} for {place}"
            raise other_results(
                folder, f"results of {model} on the data of now ({_called(data)})", got, "the --data of then"
            )
        same = True
    return same


def on_all_samples(plan: Plan, folder: ArenaFolder, model: str) -> bool:
    """Whether there are results of runs that held nothing out, and that say on which data they were."""
    return any(not _held_out(data) for _, data in _data(plan, folder, model))


def _data(plan: Plan, folder: ArenaFolder, model: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Where, and on which data, wanted by now or not; without results that are too old to say."""
    for entrant in plan.on(model):
        for run in folder.kept(entrant):
            found = folder.outcome(entrant, run)
            data = found.made.get("data") if found else None
            if isinstance(data, Mapping) and data.get("digest"):
                yield f"{entrant.place}/{run}", data


def _held_out(data: Mapping[str, Any]) -> float:
    return float(data.get("hold_out") or 0.0)


def _called(data: Mapping[str, Any]) -> str:
    return f"made-up data {data['digest']}" if data.get("synthetic") else f"{data.get('name')} {data.get('digest')}"
