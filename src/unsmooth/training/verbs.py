"""`unsmooth.train`: start runs, or take one up, and carry them to the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from unsmooth.errors import UnsmoothError, expected
from unsmooth.executing.holding import HeldError
from unsmooth.stopping import Deadline
from unsmooth.training.config import Config
from unsmooth.training.driving import Tell, carry_out
from unsmooth.training.folder import RunFolder
from unsmooth.training.journal import Progress
from unsmooth.training.place import take_place
from unsmooth.training.plain import paths
from unsmooth.training.run import LossNotFiniteError

Run = tuple[Config, RunFolder]


def train(
    config: Config,
    out: str | Path,
    *,
    seeds: int = 1,
    minutes: float | None = None,
    tell: Tell = lambda _: None,
) -> list[RunFolder]:
    """Train what `config` says, and write everything to `out`.

    Args:
        config: From a recipe, such as ``unsmooth.training.recipe("vit_cifar100")``.
        out: Folder of the run; with several seeds, a folder of runs.
        seeds: How many runs, from the seed of `config` on: side by side on a GPU, one after the other elsewhere.
        minutes: Save and stop after so many; `resume` goes on from there, to the same bits.
        tell: Called with every `Progress`.

    Returns:
        The folders of the runs.
    """
    return train_all({".": config}, out, seeds=seeds, minutes=minutes, tell=tell)


def train_all(
    configs: Mapping[str, Config],
    out: str | Path,
    *,
    seeds: int = 1,
    minutes: float | None = None,
    tell: Tell = lambda _: None,
) -> list[RunFolder]:
    """Several runs, such as one with a remedy and one without: on one GPU, up to four of them side by side.

    Args:
        configs: Name of a folder below `out` to what is trained in it.
        out: Folder of the runs.
        seeds: How many runs of each, in folders "seed-0", "seed-1" … below.
        minutes: Save and stop after so many.
        tell: Called with every `Progress`.
    """
    wanted = {
        Path(out) / name / (f"seed-{config.seed + one}" if seeds > 1 else "."): replace(config, seed=config.seed + one)
        for name, config in configs.items()
        for one in range(seeds)
    }
    runs = [(config, RunFolder(path, _called(path, Path(out)))) for path, config in wanted.items()]
    _carry(runs, tell, Deadline.in_minutes(minutes))
    return [folder for _, folder in runs]


def _carry(runs: Sequence[Run], tell: Tell, deadline: Deadline, again: bool = False) -> None:
    """Begin those that are not, and take all of them to their end; what could not even be built is taken away again."""
    with take_place(runs[0][0].engine.device) as place:
        for config, folder in runs if place.first else ():
            if not (again and folder.begun):
                folder.create(config)
        place.wait()
        try:
            carry_out(runs, place, tell, deadline)
        except UnsmoothError as error:
            for _, folder in runs if place.first and not isinstance(error, HeldError) else ():
                folder.forget_unbegun()
            raise


def carry_on(
    configs: Mapping[str, Config], out: str | Path, *, deadline: Deadline | None = None, tell: Tell = lambda _: None
) -> list[RunFolder]:
    """Start those runs that are not in `out` yet, and take up those that are, from their newest checkpoints.

    One may lose its numbers: that is an outcome, and the others go on without it.

    Args:
        configs: Name of a folder below `out` to what is trained in it; what is there with other settings is refused.
        out: Folder of the runs.
        deadline: Save and stop then; call it again to go on.
        tell: Called with every `Progress`.

    Returns:
        The folders of the runs: finished, stopped where the loss is no number any more, or paused.
    """
    runs = [(config, RunFolder(Path(out) / name, name)) for name, config in configs.items()]
    lost = list[RunFolder]()
    for config, folder in runs:
        if folder.begun:
            _check_same(folder.config(), config, folder)
    while left := [(config, folder) for config, folder in runs if not folder.finished and folder not in lost]:
        try:
            _carry(left, tell, deadline or Deadline(), again=True)
            break
        except LossNotFiniteError:
            stopped = [folder for _, folder in left if folder.manifest().get("state") == "stopped"]
            if not stopped:
                raise
            lost += stopped
    return [folder for _, folder in runs]


def _called(path: Path, out: Path) -> str:
    """What a run is called: its path below `out`, or the name of `out` where it is the only one."""
    return out.name if path == out else path.relative_to(out).as_posix()


def resume(
    out: str | Path,
    *,
    config: Config | None = None,
    minutes: float | None = None,
    tell: Tell = lambda _: None,
) -> list[RunFolder]:
    """Take up the run, or the runs, in `out` from the newest checkpoint; from the beginning where there is none.

    Args:
        out: Folder that `train` wrote.
        config: What the run is expected to be; another one is refused.
        minutes: Save and stop again after so many.
        tell: Called with every `Progress`.
    """
    folders = _runs_in(Path(out))
    configs = [folder.config() for folder in folders]
    if config is not None:
        for found, folder in zip(configs, folders, strict=True):
            _check_same(found, replace(config, seed=found.seed), folder)
    for folder in folders:
        if folder.finished:
            _tell_finished(folder, tell)
    left = [(one, folder) for one, folder in zip(configs, folders, strict=True) if not folder.finished]
    if left:
        with take_place(configs[0].engine.device) as place:
            carry_out(left, place, tell, Deadline.in_minutes(minutes))
    return folders


def _tell_finished(folder: RunFolder, tell: Tell) -> None:
    known = folder.manifest()
    steps = int(known["steps"])
    note = f"{folder.path} is finished: all its {steps:,} steps were taken before, and nothing was changed."
    tell(Progress(folder.name, steps, steps, 0.0, float(known["seconds"]), dict(known["last"]), note))


def _runs_in(out: Path) -> list[RunFolder]:
    """The run in `out`, or the runs one and two folders below it: seeds, variants, seeds of variants."""
    inside = sorted(path.parent for pattern in ("*/config.json", "*/*/config.json") for path in out.glob(pattern))
    if (out / "config.json").exists() or not inside:
        return [RunFolder(out)]
    return [RunFolder(path, _called(path, out)) for path in inside]


def _check_same(found: Config, wanted: Config, folder: RunFolder) -> None:
    differing = [path for path in paths(found) if _at(found, path) != _at(wanted, path)]
    if differing:
        said = ", ".join(f"{path} {_at(found, path)!r} there, {_at(wanted, path)!r} here" for path in differing[:3])
        raise expected(f"the settings of the run in {folder.path}", said, "--resume alone, or a new --out")


def _at(settings: object, path: str) -> object:
    for name in path.split("."):
        settings = getattr(settings, name, None)
    return settings
