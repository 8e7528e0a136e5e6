"""What is kept of claims and of training runs, and what made it: results as JSON files, whole or not at all.

evidence/full/claims/eigenvalues-decide.json
evidence/full/studies/steering.json
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar, get_args, overload

import torch

from unsmooth.errors import expected, unknown_name
from unsmooth.files import finite, read_json, write_whole
from unsmooth.scanning.manifest import describe_versions
from unsmooth.schema import parse
from unsmooth.training import Config, RunFolder, TrainedRun, read_run
from unsmooth.training.driving import AT_ONCE
from unsmooth.training.plain import from_plain, to_plain

Scale: TypeAlias = Literal["tiny", "small", "full"]
"""tiny: seconds on two CPU cores, to see that everything runs. small: minutes. full: the most that was run here,
which verdicts rest on; it is not the scale of the papers."""

SCALES: tuple[Scale, ...] = get_args(Scale)

SEEDS: dict[Scale, tuple[int, ...]] = {"tiny": (0, 1), "small": (0, 1, 2), "full": (0, 1, 2)}
"""Of training runs. A seed decides weights, order of data, augmentation: variants with the same one are paired."""


def known_scale(name: str) -> Scale:
    """The scale of that name.

    >>> known_scale("small")
    'small'
    """
    for scale in SCALES:
        if scale == name:
            return scale
    raise unknown_name("scale", name, SCALES)


FORMAT = 1
T = TypeVar("T")


def write_json(path: Path, content: Mapping[str, Any]) -> Path:
    """Put plain data in its place; what is not finite becomes null."""
    return write_whole(path, json.dumps(finite({"format": FORMAT, **content}), ensure_ascii=False, indent=1) + "\n")


@overload
def read_results(path: Path) -> dict[str, Any] | None: ...
@overload
def read_results(path: Path, kind: type[T]) -> T | None: ...
def read_results(path: Path, kind: Any = dict) -> Any:
    """What `write_json` wrote, as `kind`; None where there is nothing."""
    try:
        content = read_json(path)
    except FileNotFoundError:
        return None
    if (form := content.pop("format", None)) != FORMAT:
        hint = "the version of unsmooth that wrote it"
        raise expected(f"results of format {FORMAT}", f"format {str(form)[:80]} in {path}", hint)
    return parse(kind, content, where=repr(str(path)))


@dataclass(frozen=True)
class Trained:
    """What is kept of one run.

    Attributes:
        variant: Which of the study's.
        seed: Of everything random.
        config: All settings, as plain data.
        made: Git commit, hardware, versions, seconds, steps, parameters, data.
        evaluations: Lines of the log: epoch, loss, accuracy.
        similarity: Metric to measurements over training: {"epoch": …, "layers": [embedding, layer 1, …]}.
        spectra: Over training: {"epoch": …, "layers": [{"asymmetry", "negative_share", …}]}.
        looked: What the study itself measured on the trained model.
    """

    variant: str
    seed: int
    config: Mapping[str, Any]
    made: Mapping[str, Any]
    evaluations: tuple[Mapping[str, Any], ...]
    similarity: Mapping[str, tuple[Mapping[str, Any], ...]]
    spectra: tuple[Mapping[str, Any], ...] = ()
    looked: Mapping[str, Any] = field(default_factory=dict)

    @property
    def accuracy(self) -> float:
        """On the test set, at the end; of a classifier whose loss stopped being a number, that of guessing."""
        if self.made.get("state") == "stopped" or not self.evaluations:
            return self.chance
        return float(self.evaluations[-1]["accuracy"])

    @property
    def chance(self) -> float:
        """What guessing gets right where all classes are equally frequent, as in CIFAR."""
        return 1 / int(self.config["network"]["classes"])

    def layers(self, metric: str = "mean_cosine", moment: int = -1) -> list[float]:
        """A metric at each layer, embedding first: at the end of training, or with `moment` 0 before it."""
        return list(self.similarity[metric][moment]["layers"])


@dataclass(frozen=True)
class Record:
    """What was measured for a claim, and what made it.

    Attributes:
        id: The claim's.
        scale: At which scale.
        seeds: Which were used.
        rule: `for_if` and `against_if` as they stood when it was measured.
        made: Commit, hardware, versions, when, seconds.
        measured: The numbers.
    """

    id: str
    scale: Scale
    seeds: tuple[int, ...]
    rule: Mapping[str, str]
    made: Mapping[str, Any]
    measured: Mapping[str, Any]


@dataclass(frozen=True)
class _Study:
    study: str
    scale: Scale
    runs: tuple[Trained, ...]


@dataclass(frozen=True)
class Store:
    """A folder of results."""

    path: Path

    def write_claim(self, record: Record) -> Path:
        """Put a claim's numbers in their place."""
        return write_json(self._claim(record.id, record.scale), asdict(record))

    def claim(self, id: str, scale: Scale) -> Record | None:
        """What was measured at a scale; None where nothing was."""
        return read_results(self._claim(id, scale), Record)

    def best_claim(self, id: str) -> Record | None:
        """What was measured at the largest scale."""
        found = (self.claim(id, scale) for scale in reversed(SCALES))
        return next((record for record in found if record is not None), None)

    def write_study(self, name: str, scale: Scale, trained: Sequence[Trained]) -> Path:
        """Put the runs of a study in their place, in the order of variants and seeds as given."""
        return write_json(
            self._study(name, scale), {"study": name, "scale": scale, "runs": [asdict(run) for run in trained]}
        )

    def study(self, name: str, scale: Scale) -> list[Trained]:
        """The runs of a study that are there; empty where none is."""
        found = read_results(self._study(name, scale), _Study)
        return [] if found is None else list(found.runs)

    def _claim(self, id: str, scale: Scale) -> Path:
        return self.path / scale / "claims" / f"{id}.json"

    def _study(self, name: str, scale: Scale) -> Path:
        return self.path / scale / "studies" / f"{name}.json"


COMMIT = "UNSMOOTH_COMMIT"
"""Environment variable with the commit, for machines that hold the code without its history."""


def made(device: torch.device) -> dict[str, Any]:
    """Everything but the time that it took."""
    return {
        **commit(),
        "hardware": hardware(device),
        "versions": describe_versions(),
        "when": datetime.now(UTC).strftime("%Y-%m-%d"),
    }


def hardware(device: torch.device) -> str:
    """The GPU's name, or the processor's kind and how many of them may be used."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"CPU ({platform.machine()}, {usable} cores)"


@cache
def commit() -> dict[str, Any]:
    """The commit of this code, and whether it was changed since; None where there is no history and nothing said."""
    if COMMIT in os.environ:
        said = os.environ[COMMIT]
        return {"commit": said.removesuffix("+"), "changed": said.endswith("+")}
    here = Path(__file__).resolve().parents[2]
    found = _git(here, "rev-parse", "HEAD")
    if not found or not (here.parent / "pyproject.toml").exists():
        return {"commit": None, "changed": None}
    return {"commit": found, "changed": bool(_git(here, "status", "--porcelain", "--", str(here)))}


def _git(folder: Path, *words: str) -> str:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *words], capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


DIGITS = 6
_ELSEWHERE = ("engine", "data.path")
"""Settings that do not decide the numbers of a run: the machine, and where its data lie."""


def kept(variant: str, config: Config, folder: RunFolder, together: int, sharing: int = 1) -> Trained:
    """What is kept of a run that came to its end, beside `together` others in each of `sharing` commands."""
    run = read_run(folder.path)
    device = torch.device("cuda" if _on_gpu(run) else "cpu")
    beside = sharing * min(together, AT_ONCE) if device.type == "cuda" else 1
    facts = {key: run.manifest.get(key) for key in ("state", "seconds", "steps", "done", "parameters", "data")}
    facts |= {"reason": run.manifest["reason"]} if "reason" in run.manifest else {}
    return Trained(
        variant=variant,
        seed=config.seed,
        config=to_plain(config),
        made={**made(device), **facts, "side_by_side": beside},
        evaluations=tuple(_rounded(line, ("epoch", "loss", *run.metrics)) for line in run.evaluations),
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


def differing_settings(plain: Mapping[str, Any], config: Config, *, everything: bool = False) -> list[str]:
    """Paths of settings that decide the numbers of a run and are otherwise in `plain` data than in `config`.

    Args:
        plain: Settings that were kept.
        config: Settings of now.
        everything: Also those that do not decide the numbers: the machine, and where its data lie.
    """
    # Settings that are younger than what was kept had their default then.
    both = (to_plain(config), to_plain(from_plain(Config, plain)))
    wanted, found = (dict(_settings(one, () if everything else _ELSEWHERE)) for one in both)
    nothing = object()
    return [path for path in wanted | found if wanted.get(path, nothing) != found.get(path, nothing)]


def _settings(plain: Mapping[str, Any], without: Container[str], above: str = "") -> Iterator[tuple[str, Any]]:
    """By path."""
    for name, value in plain.items():
        path = above + name
        if path in without:
            continue
        if isinstance(value, Mapping):
            yield from _settings(value, without, f"{path}.")
        else:
            yield path, value
