"""Training what a study wants: what is there is kept, what was begun is taken up, what is missing is started."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from unsmooth.errors import UnsmoothError, expected
from unsmooth.evidence.bench import Bench
from unsmooth.evidence.provenance import made
from unsmooth.evidence.study import Study, Trained
from unsmooth.models.load import load
from unsmooth.training import Config, LossNotFiniteError, RunFolder, TrainedRun, carry_on, read_run
from unsmooth.training.driving import AT_ONCE
from unsmooth.training.place import take_place
from unsmooth.training.plain import from_plain, to_plain

DIGITS = 6


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
    folders = _trained(left, study, bench, None if end is None else (end - time.monotonic()) / 60)
    done: dict[tuple[str, int], Trained] = {}
    for (variant, config), folder in zip(left.items(), folders, strict=True):
        if folder.manifest().get("state") in ("finished", "stopped"):
            run = kept(variant, config, folder, len(left), bench.sharing)
            if look and folder.finished:
                run = replace(run, looked=_looked(study, config, folder, bench))
            done[variant, config.seed] = run
    _add(done, study, bench)
    if unfinished := [variant for variant, config in left.items() if (variant, config.seed) not in done]:
        raise NotFinishedError(
            f"Expected {study.name} to be trained in the time given but {', '.join(unfinished)} of seed "
            f"{next(iter(left.values())).seed} is not done. Try the same command again: it goes on from there."
        )


def _add(done: Mapping[tuple[str, int], Trained], study: Study, bench: Bench) -> None:
    """Beside what is there by now: another command may have trained other runs of the study meanwhile."""
    known = {**_known(study, bench), **done}
    order = {variant: place for place, variant in enumerate(study.configs(bench))}
    runs = sorted(known.values(), key=lambda run: (order.get(run.variant, len(order)), run.seed))
    bench.store.write_study(study.name, bench.scale, runs)


def _trained(configs: Mapping[str, Config], study: Study, bench: Bench, minutes: float | None) -> list[RunFolder]:
    """A run whose loss is no number any more has an outcome too; the others go on without it."""
    out, left = _home(study, bench), dict(configs)
    folders = {variant: RunFolder(out / _place(variant, config)) for variant, config in configs.items()}
    while left:
        try:
            carry_on(
                {_place(name, config): config for name, config in left.items()}, out, minutes=minutes, tell=bench.tell
            )
            break
        except LossNotFiniteError:
            stopped = [name for name in left if folders[name].manifest().get("state") == "stopped"]
            if not stopped:
                raise
            left = {name: config for name, config in left.items() if name not in stopped}
    return list(folders.values())


def _home(study: Study, bench: Bench) -> Path:
    return bench.runs / bench.scale / study.name


def _place(variant: str, config: Config) -> str:
    return f"{variant}/seed-{config.seed}"


def _set(config: Config, seed: int, bench: Bench) -> Config:
    return replace(config, seed=seed, engine=replace(config.engine, device=bench.device))


def _known(study: Study, bench: Bench) -> dict[tuple[str, int], Trained]:
    return {(run.variant, run.seed): run for run in bench.store.study(study.name, bench.scale)}


def _check_same(run: Trained, config: Config, study: Study) -> None:
    wanted, found = _settings(to_plain(config)), _settings(run.config)
    if wanted != found:
        differing = ", ".join(key for key in wanted if wanted[key] != found.get(key))
        raise expected(
            f"results of {study.name} with the settings of now",
            f"others for {run.variant} of seed {run.seed} ({differing})",
            "another --out, or removing its results",
        )


def _settings(plain: Mapping[str, Any]) -> dict[str, Any]:
    """What decides the numbers: not the machine, nor where its data lie."""
    kept = {key: value for key, value in plain.items() if key != "engine"}
    kept["data"] = {key: value for key, value in plain["data"].items() if key != "path"}
    return kept


def kept(variant: str, config: Config, folder: RunFolder, together: int, sharing: int = 1) -> Trained:
    """What is kept of a run that came to its end, beside `together` others in each of `sharing` commands."""
    run = read_run(folder.path)
    device = torch.device("cuda" if _on_gpu(run) else "cpu")
    beside = sharing * min(together, AT_ONCE) if device.type == "cuda" else 1
    facts = ("state", "seconds", "steps", "done", "parameters", "data")
    return Trained(
        variant=variant,
        seed=config.seed,
        config=to_plain(config),
        made={**made(device), **{key: run.manifest.get(key) for key in facts}, "side_by_side": beside},
        evaluations=tuple(_rounded(line, ("epoch", "loss", "accuracy")) for line in run.evaluations),
        similarity=_similarity(run),
        spectra=tuple(_rounded(line, ("epoch", "layers")) for line in run.spectra),
    )


def _on_gpu(run: TrainedRun) -> bool:
    return torch.cuda.is_available() and torch.cuda.get_device_name() == run.manifest.get("device")


def _similarity(run: TrainedRun) -> dict[str, tuple[dict[str, Any], ...]]:
    """Every metric of the scans at the start and the end, and the mean cosine in between too."""
    found: dict[str, list[dict[str, Any]]] = {}
    for place, measured in enumerate(run.measurements):
        ends = place in (0, len(run.measurements) - 1)
        for metric in measured.scan.metrics:
            if ends or metric == "mean_cosine":
                layers = [rounded(row.mean) for row in measured.scan.curve(metric)]
                found.setdefault(metric, []).append({"epoch": rounded(measured.epoch), "layers": layers})
    return {metric: tuple(moments) for metric, moments in found.items()}


def _rounded(line: Mapping[str, Any], keys: Iterable[str]) -> dict[str, Any]:
    return {key: rounded(line[key]) for key in keys if key in line}


def rounded(value: Any) -> Any:
    """Numbers with as many digits as anybody reads."""
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, Mapping):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(item) for item in value]
    return value
