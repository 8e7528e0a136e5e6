"""Training what a study wants: what is there is kept, what was begun is taken up, what is missing is started."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from unsmooth.errors import UnsmoothError, expected
from unsmooth.evidence.bench import Bench
from unsmooth.evidence.keeping import differing_settings, kept, rounded
from unsmooth.evidence.study import Study, Trained
from unsmooth.evidence.together import train_together
from unsmooth.models.load import load
from unsmooth.training import Config, RunFolder
from unsmooth.training.holding import held
from unsmooth.training.place import take_place
from unsmooth.training.plain import from_plain


class NotFinishedError(UnsmoothError):
    """The time given was too short; what was trained so far is kept."""


def carry_out_study(
    study: Study,
    bench: Bench,
    *,
    seeds: Iterable[int] | None = None,
    variants: Iterable[str] | None = None,
    look: bool = True,
) -> list[Trained]:
    """Runs of a study, all or some; written down as each seed is done.

    Args:
        study: Which.
        bench: How much, where.
        seeds: Only these; None for all.
        variants: Only these; None for all.
        look: Whether the study measures further things on each trained model; `look_again` does so later.

    Raises:
        NotFinishedError: `bench.minutes` were too few.
    """
    configs = study.configs(bench)
    wanted = list(configs) if variants is None else list(variants)
    for variant in wanted:
        if variant not in configs:
            raise expected(f"a variant of {study.name}", repr(variant), f"one of {', '.join(configs)}")
    end = None if bench.minutes is None else time.monotonic() + 60 * bench.minutes
    chosen = tuple(study.seeds(bench) if seeds is None else seeds)
    for seed in chosen:
        named = {variant: _set(configs[variant], seed, bench) for variant in wanted}
        _carry_out_seed(study, bench, named, end, look)
    known = _known(study, bench)
    return [known[variant, seed] for variant in wanted for seed in chosen]


def look_again(study: Study, bench: Bench) -> list[Trained]:
    """Have the study look at all models that it trained and that are still there, once more."""
    runs = []
    for run in bench.store.study(study.name, bench.scale):
        config = from_plain(Config, run.config)
        folder = RunFolder(_home(study, bench) / _place(run.variant, config))
        runs.append(replace(run, looked=_looked(study, config, folder, bench)) if folder.finished else run)
    bench.store.write_study(study.name, bench.scale, runs)
    return runs


def _looked(study: Study, config: Config, folder: RunFolder, bench: Bench) -> dict[str, Any]:
    with take_place(bench.device) as place:
        found: dict[str, Any] = rounded(study.look(load(folder.final, device=place.device), config, place.device))
        return found


def _carry_out_seed(study: Study, bench: Bench, configs: Mapping[str, Config], end: float | None, look: bool) -> None:
    """All variants of one seed together, so that what is compared shares the machine and the moment."""
    known = _known(study, bench)
    left = {}
    for variant, config in configs.items():
        if (variant, config.seed) in known:
            _check_same(known[variant, config.seed], config, study)
        else:
            left[variant] = config
    if not left:
        return
    if bench.minutes == 0:  # for what is there already: nothing is built
        raise _not_finished(study, left)
    minutes = None if end is None else (end - time.monotonic()) / 60
    places = {_place(variant, config): config for variant, config in left.items()}
    folders = train_together(places, _home(study, bench), minutes=minutes, tell=bench.tell)
    done: dict[tuple[str, int], Trained] = {}
    for (variant, config), folder in zip(left.items(), folders, strict=True):
        if folder.manifest().get("state") in ("finished", "stopped"):
            run = kept(variant, config, folder, len(left), bench.sharing)
            if look and folder.finished:
                run = replace(run, looked=_looked(study, config, folder, bench))
            done[variant, config.seed] = run
    _add(done, study, bench)
    if unfinished := {variant: config for variant, config in left.items() if (variant, config.seed) not in done}:
        raise _not_finished(study, unfinished)


def _not_finished(study: Study, left: Mapping[str, Config]) -> NotFinishedError:
    seed = next(iter(left.values())).seed
    return NotFinishedError(
        f"Expected {study.name} to be trained in the time given but {', '.join(left)} of seed {seed} is not done. "
        "Try the same command again: it goes on from there."
    )


def _add(done: Mapping[tuple[str, int], Trained], study: Study, bench: Bench) -> None:
    """Beside what is there by now: another command may have trained other runs of the study meanwhile."""
    order = {variant: place for place, variant in enumerate(study.configs(bench))}
    with held(_home(study, bench), f"results of {study.name} that can be written", wait=True):
        known = {**_known(study, bench), **done}
        runs = sorted(known.values(), key=lambda run: (order.get(run.variant, len(order)), run.seed))
        bench.store.write_study(study.name, bench.scale, runs)


def _home(study: Study, bench: Bench) -> Path:
    return bench.runs / bench.scale / study.name


def _place(variant: str, config: Config) -> str:
    return f"{variant}/seed-{config.seed}"


def _set(config: Config, seed: int, bench: Bench) -> Config:
    return replace(config, seed=seed, engine=replace(config.engine, device=bench.device))


def _known(study: Study, bench: Bench) -> dict[tuple[str, int], Trained]:
    return {(run.variant, run.seed): run for run in bench.store.study(study.name, bench.scale)}


def _check_same(run: Trained, config: Config, study: Study) -> None:
    if differing := differing_settings(run.config, config):
        raise expected(
            f"results of {study.name} with the settings of now",
            f"others for {run.variant} of seed {run.seed} ({', '.join(differing)})",
            "another --out, or removing its results",
        )
