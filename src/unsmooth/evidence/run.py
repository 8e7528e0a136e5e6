"""Claims measured and studies carried out: what is known is kept, what is missing is trained, all is written down."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from unsmooth.errors import expected
from unsmooth.evidence import claims as _claims
from unsmooth.evidence import studies as _studies
from unsmooth.evidence.bench import Bench, NotFinishedError
from unsmooth.evidence.claim import CLAIMS, Claim
from unsmooth.evidence.records import Record, Trained, differing_settings, kept, made, rounded
from unsmooth.evidence.study import Study
from unsmooth.executing import Driver, Job, forecast
from unsmooth.models.load import load
from unsmooth.stopping import Deadline
from unsmooth.training import Config, RunFolder, carry_on
from unsmooth.training.driving import Tell, side_by_side_on
from unsmooth.training.place import take_place
from unsmooth.training.plain import from_plain
from unsmooth.training.stopwatch import seconds_of_a_run

_REGISTERED = (_claims, _studies)  # importing them fills the registries


def run_claim(claim: str | Claim, bench: Bench) -> Record:
    """Measure a claim at the scale of the bench, write the numbers down and return them.

    Args:
        claim: A claim, or its id.
        bench: How much, where, with what.
    """
    one = CLAIMS[claim] if isinstance(claim, str) else claim
    start = time.monotonic()
    measured = one.measure(bench)
    with take_place(bench.device) as place:
        about = made(place.device)
    record = Record(
        id=one.id,
        scale=bench.scale,
        seeds=one.seeds(bench),
        rule=one.rule,
        made={**about, "seconds": round(time.monotonic() - start, 1)},
        measured=rounded(measured),
    )
    # A rule that cannot be applied to its own numbers is found out now, not by a reader.
    one.judge(record.measured)
    bench.store.write_claim(record)
    return record


Run = tuple[str, int]
"""Variant and seed."""


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
        NotFinishedError: The time of the bench was too short.
    """
    configs = study.configs(bench)
    wanted = list(configs) if variants is None else list(variants)
    for variant in wanted:
        if variant not in configs:
            raise expected(f"a variant of {study.name}", repr(variant), f"one of {', '.join(configs)}")
    chosen = tuple(study.seeds(bench) if seeds is None else seeds)
    named = {(variant, seed): _set(configs[variant], seed, bench) for seed in chosen for variant in wanted}
    known = _known(study, bench)
    for run in named.keys() & known.keys():
        _check_same(known[run], named[run], study)
    if left := [run for run in named if run not in known]:
        if not bench.deadline.nothing:  # else for what is there already: nothing is built
            _train(study, bench, {run: named[run] for run in left}, look)
        known = _known(study, bench)
        if left := [run for run in left if run not in known]:
            raise _not_finished(study, left)
    return [known[variant, seed] for variant in wanted for seed in chosen]


def look_again(study: Study, bench: Bench) -> list[Trained]:
    """Have the study look at all models that it trained and that are still there, once more."""
    runs = []
    for run in bench.store.study(study.name, bench.scale):
        config = from_plain(Config, run.config)
        folder = RunFolder(_home(study, bench) / _place(run.variant, config))
        here = _set(config, run.seed, bench)
        runs.append(replace(run, looked=_looked(study, here, folder)) if folder.finished else run)
    bench.store.write_study(study.name, bench.scale, runs)
    return runs


def _looked(study: Study, config: Config, folder: RunFolder) -> dict[str, Any]:
    with take_place(config.engine.device) as place:
        found: dict[str, Any] = rounded(study.look(load(folder.final, device=place.device), config, place.device))
        return found


def _train(study: Study, bench: Bench, left: Mapping[Run, Config], look: bool) -> None:
    """Seed by seed: variants of one seed together on a GPU, so that what is compared shares machine and moment."""
    at_once = side_by_side_on(bench.device)
    home, sharing = _home(study, bench), bench.crew.processes
    jobs = list[Job]()
    for seed in dict.fromkeys(seed for _, seed in left):
        runs = {run: config for run, config in left.items() if run[1] == seed}
        parts = math.ceil(len(runs) / at_once)
        for part in range(parts):
            some = dict(list(runs.items())[part * len(runs) // parts : (part + 1) * len(runs) // parts])
            key = f"{study.name}: {', '.join(variant for variant, _ in some)} of seed {seed}"
            work = partial(_trained, study if look else None, some, home, sharing)
            jobs.append(Job(key, work, lambda found: _add(found, study, bench)))
    with Driver(home, bench.crew, bench.deadline, bench.tell) as driver:
        if bench.announce is not None:
            tell, (first, *_) = bench.announce, left.values()
            sizes = [_size(config) / _size(first) for config in left.values()]

            def announce(seconds: float) -> None:
                tell(f"{study.name}: {forecast(len(left), seconds * sum(sizes), bench.crew)}")

            driver.hand_out(lambda: [Job("time a step", partial(_seconds, first), announce)])
        driver.hand_out(lambda: jobs)


def _seconds(config: Config, deadline: Deadline, tell: Tell) -> float:
    return seconds_of_a_run(config)


def _size(config: Config) -> float:
    """What the time of a run goes with."""
    return float(config.steps or config.epochs or 0) * config.network.depth


def _trained(
    study: Study | None, configs: Mapping[Run, Config], home: Path, sharing: int, deadline: Deadline, tell: Tell
) -> dict[Run, Trained]:
    """Of runs side by side those that came to their end, with what the study, if any, looks at."""
    places = {_place(variant, config): config for (variant, _), config in configs.items()}
    done = {}
    for (run, config), folder in zip(
        configs.items(), carry_on(places, home, deadline=deadline, tell=tell), strict=True
    ):
        if folder.manifest().get("state") in ("finished", "stopped"):
            done[run] = kept(run[0], config, folder, len(configs), sharing)
            if study is not None and folder.finished:
                done[run] = replace(done[run], looked=_looked(study, config, folder))
    return done


def _not_finished(study: Study, left: Sequence[Run]) -> NotFinishedError:
    seed = left[0][1]
    variants = ", ".join(variant for variant, of in left if of == seed)
    return NotFinishedError(
        f"Expected {study.name} to be trained in the time given but {variants} of seed {seed} is not done. "
        "Try the same command again: it goes on from there."
    )


def _add(done: Mapping[Run, Trained], study: Study, bench: Bench) -> None:
    """Beside what is there by now."""
    order = {variant: place for place, variant in enumerate(study.configs(bench))}
    known = {**_known(study, bench), **done}
    runs = sorted(known.values(), key=lambda run: (order.get(run.variant, len(order)), run.seed))
    bench.store.write_study(study.name, bench.scale, runs)


def _home(study: Study, bench: Bench) -> Path:
    return bench.runs / bench.scale / study.name


def _place(variant: str, config: Config) -> str:
    return f"{variant}/seed-{config.seed}"


def _set(config: Config, seed: int, bench: Bench) -> Config:
    return replace(config, seed=seed, engine=replace(config.engine, device=bench.device))


def _known(study: Study, bench: Bench) -> dict[Run, Trained]:
    return {(run.variant, run.seed): run for run in bench.store.study(study.name, bench.scale)}


def _check_same(run: Trained, config: Config, study: Study) -> None:
    if differing := differing_settings(run.config, config):
        raise expected(
            f"results of {study.name} with the settings of now",
            f"others for {run.variant} of seed {run.seed} ({', '.join(differing)})",
            "another --out, or removing its results",
        )
