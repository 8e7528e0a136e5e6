"""What is kept of a training run beside its folder, which is large: settings, numbers, and what made them."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Any

import torch

from unsmooth.evidence.provenance import made
from unsmooth.evidence.study import Trained
from unsmooth.training import Config, RunFolder, TrainedRun, read_run
from unsmooth.training.driving import AT_ONCE
from unsmooth.training.plain import from_plain, to_plain

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
