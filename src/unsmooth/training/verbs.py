"""`unsmooth.train`: start runs, or take one up, and carry them to the end."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import torch

from unsmooth.errors import UnsmoothError, expected
from unsmooth.models.randomise import private_randomness
from unsmooth.training.config import Config
from unsmooth.training.folder import RunFolder
from unsmooth.training.journal import Progress
from unsmooth.training.place import Place, take_place
from unsmooth.training.plain import paths
from unsmooth.training.run import Run

Tell = Callable[[Progress], None]
AT_ONCE = 4
"""Runs that share a GPU at a time: more of them wait for each other rather than for the host."""


def train(config: Config, out: str | Path, *, seeds: int = 1, tell: Tell = lambda _: None) -> list[RunFolder]:
    """Train what `config` says, and write everything to `out`.

    Args:
        config: From a recipe, such as ``unsmooth.training.recipe("vit_cifar100")``.
        out: Folder of the run; with several seeds, a folder of runs.
        seeds: How many runs, from the seed of `config` on: side by side on a GPU, one after the other elsewhere.
        tell: Called with every `Progress`.

    Returns:
        The folders of the runs.
    """
    return train_all({".": config}, out, seeds=seeds, tell=tell)


def train_all(
    configs: Mapping[str, Config], out: str | Path, *, seeds: int = 1, tell: Tell = lambda _: None
) -> list[RunFolder]:
    """Several runs, such as one with a remedy and one without: on one GPU, up to `AT_ONCE` of them side by side.

    Args:
        configs: Name of a folder below `out` to what is trained in it.
        out: Folder of the runs.
        seeds: How many runs of each, in folders "seed-0", "seed-1" … below.
        tell: Called with every `Progress`.
    """
    wanted = {
        Path(out) / name / (f"seed-{config.seed + one}" if seeds > 1 else "."): replace(config, seed=config.seed + one)
        for name, config in configs.items()
        for one in range(seeds)
    }
    runs = [(config, RunFolder(path, _called(path, Path(out)))) for path, config in wanted.items()]
    with take_place(runs[0][0].engine.device) as place:
        if place.first:
            for config, folder in runs:
                folder.create(config)
        place.wait()
        try:
            _carry_out(runs, place, tell)
        except UnsmoothError:
            for _, folder in runs if place.first else ():
                folder.forget_unbegun()
            raise
    return [folder for _, folder in runs]


def _called(path: Path, out: Path) -> str:
    """What a run is called: its path below `out`, or the name of `out` where it is the only one."""
    return out.name if path == out else path.relative_to(out).as_posix()


def resume(out: str | Path, *, config: Config | None = None, tell: Tell = lambda _: None) -> list[RunFolder]:
    """Take up the run, or the runs, in `out` from the newest checkpoint; from the beginning where there is none.

    Args:
        out: Folder that `train` wrote.
        config: What the run is expected to be; another one is refused.
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
            _carry_out(left, place, tell)
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


def _carry_out(runs: Sequence[tuple[Config, RunFolder]], place: Place, tell: Tell) -> None:
    at_once = AT_ONCE if place.device.type == "cuda" and place.ranks == 1 else 1
    with ExitStack() as stack:
        for _, folder in runs if place.first else ():
            stack.enter_context(folder.held())
        for start in range(0, len(runs), at_once):
            _together(runs[start : start + at_once], place, tell)


def _together(runs: Sequence[tuple[Config, RunFolder]], place: Place, tell: Tell) -> None:
    config = runs[0][0]
    with warnings.catch_warnings(), reproducible(config), memory_in_words(config, place):
        # Said of every sharded block; nothing here is written in place.
        warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view")
        # What draws from torch's generator after all draws the same, whatever was drawn before.
        with private_randomness(config.seed):
            side_by_side([Run(one, folder, place, tell) for one, folder in runs])


def side_by_side(runs: Sequence[Run]) -> None:
    """Move all runs on in turn until each is done; on a GPU their steps overlap."""
    open_runs = [run for run in runs if not run.done]
    for run in runs:
        if run.done:
            run.finish()
    while open_runs:
        for run in open_runs:
            run.advance()
        for run in [one for one in open_runs if one.done]:
            run.finish()
        open_runs = [one for one in open_runs if not one.done]


@contextmanager
def reproducible(config: Config) -> Iterator[None]:
    """Where the run asks for it, only kernels that give the same bits every time."""
    before = torch.are_deterministic_algorithms_enabled()
    if config.engine.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it cuBLAS refuses
        torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


@contextmanager
def memory_in_words(config: Config, place: Place) -> Iterator[None]:
    """Say what to lower where memory runs out."""
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError) as error:
        raise _too_large(config, place) from error
    except RuntimeError as error:
        if "can't allocate memory" not in str(error):
            raise
        raise _too_large(config, place) from error


def _too_large(config: Config, place: Place) -> Exception:
    share = config.micro_batch or config.batch // place.ranks
    what = f"memory for {share} samples at a time on {place.device}"
    hints = [f"--set micro_batch={share // 2}, which adds up to the same batch"] if share > 1 else []
    hints += ["--set precision=bfloat16"] if config.engine.precision != "bfloat16" else []
    return expected(what, "too little", ", or ".join(hints or ["a smaller network"]))
