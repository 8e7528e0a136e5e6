"""`unsmooth.train`: start runs, or take one up, and carry them to the end."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch

from unsmooth.errors import expected
from unsmooth.models.randomise import private_randomness
from unsmooth.training.config import Config
from unsmooth.training.folder import RunFolder
from unsmooth.training.place import Place, take_place
from unsmooth.training.plain import paths
from unsmooth.training.run import Progress, Run

Tell = Callable[[Progress], None]


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
    folders = (
        [RunFolder(out)] if seeds == 1 else [RunFolder(Path(out) / f"seed-{config.seed + one}") for one in range(seeds)]
    )
    configs = [dataclasses.replace(config, seed=config.seed + one) for one in range(seeds)]
    with take_place(config.engine.device) as place:
        if place.first:
            for one, folder in zip(configs, folders, strict=True):
                folder.create(one)
        place.wait()
        _carry_out(configs, folders, place, tell)
    return folders


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
            _check_same(found, dataclasses.replace(config, seed=found.seed), folder)
    left = [(one, folder) for one, folder in zip(configs, folders, strict=True) if not folder.finished]
    for folder in folders:
        if folder.finished:
            _tell_finished(folder, tell)
    if left:
        with take_place(configs[0].engine.device) as place:
            _carry_out([one for one, _ in left], [folder for _, folder in left], place, tell)
    return folders


def _tell_finished(folder: RunFolder, tell: Tell) -> None:
    known = folder.manifest()
    steps = int(known["steps"])
    note = f"{folder.path} is finished: all its {steps:,} steps were taken before, and nothing was changed."
    tell(Progress(folder.path.name, steps, steps, 0.0, float(known["seconds"]), dict(known["last"]), note))


def _runs_in(out: Path) -> list[RunFolder]:
    inner = sorted(path.parent for path in out.glob("seed-*/config.json"))
    return [RunFolder(path) for path in inner] if inner and not (out / "config.json").exists() else [RunFolder(out)]


def _check_same(found: Config, wanted: Config, folder: RunFolder) -> None:
    differing = [path for path in paths(found) if _at(found, path) != _at(wanted, path)]
    if differing:
        said = ", ".join(f"{path} {_at(found, path)!r} there, {_at(wanted, path)!r} here" for path in differing[:3])
        raise expected(f"the settings of the run in {folder.path}", said, "--resume alone, or a new --out")


def _at(settings: object, path: str) -> object:
    for name in path.split("."):
        settings = getattr(settings, name, None)
    return settings


def _carry_out(configs: Sequence[Config], folders: Sequence[RunFolder], place: Place, tell: Tell) -> None:
    with ExitStack() as stack:
        for folder in folders if place.first else ():
            stack.enter_context(folder.held())
        # What draws from torch's generator after all draws the same, whatever was drawn before.
        stack.enter_context(private_randomness(configs[0].seed))
        stack.enter_context(reproducible(configs[0]))
        stack.enter_context(memory_in_words(configs[0], place))
        if place.device.type == "cuda" and place.ranks == 1:
            side_by_side([Run(one, folder, place, tell) for one, folder in zip(configs, folders, strict=True)])
        else:
            for one, folder in zip(configs, folders, strict=True):
                side_by_side([Run(one, folder, place, tell)])


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
    torch.use_deterministic_algorithms(before or config.engine.deterministic)
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
