"""Arenas of a few steps on a handful of made-up images."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.training.tiny_runs import tiny
from unsmooth.arena import ArenaFolder, Entrant, Plan, Standing, carry_out_arena, plan_arena, standings
from unsmooth.arena.results import rate_run, seed_run
from unsmooth.evidence import Trained
from unsmooth.training import Config, Progress
from unsmooth.training.stopwatch import Timing

PRE, POST = "norm=pre", "norm=post"


def smallest(**changes: Any) -> Config:
    """Three steps of a ViT with one block."""
    calm = {"network__depth": 1, "ema": 0.0, "steps": 3, "checkpoint_every": 3, "network__drop_path": 0.0}
    return tiny(**{**calm, **changes})


def plan(*remedies: str, **changes: Any) -> Plan:
    """Two rates, none beyond, and two seeds, unless told otherwise."""
    settings: dict[str, Any] = {"rates": (1e-3, 1e-2), "widen": 0, "seeds": 2, **changes}
    return plan_arena(settings.pop("base", smallest()), remedies or ("deescalate",), **settings)


class Heard:
    """Which runs were moved."""

    def __init__(self) -> None:
        self.names = list[str]()

    def __call__(self, progress: Progress) -> None:
        self.names.append(progress.name)


def carried_out(wanted: Plan, path: Path, **how: Any) -> tuple[dict[tuple[str, str], Standing], list[str]]:
    """Standings by model and remedy, and the runs that were moved for them."""
    heard = Heard()
    folder = ArenaFolder(path)
    carry_out_arena(wanted, folder, tell=heard, **how)
    found = standings(wanted, folder)
    named = list(dict.fromkeys(heard.names))
    return {(line.entrant.model, line.entrant.remedy): line for line in found.lines}, named


def results(path: Path) -> dict[str, bytes]:
    """Every outcome, without what depends on the clock."""
    found = {}
    for file in sorted(path.glob("results/*/*/*.json")):
        content = json.loads(file.read_text())
        if "made" in content:
            content["made"] = {key: content["made"][key] for key in ("state", "done", "parameters")}
            found[str(file.relative_to(path))] = json.dumps(content, sort_keys=True).encode()
    return found


def outcome(remedy: str, seed: int, accuracy: float, *, rate: float = 1e-3, **made: Any) -> Trained:
    """A run that nobody trained: mean cosines of 0.1 and 0.2 before, 0.3 and 0.4 after, and a little per seed."""
    before, after = ([start + 0.01 * (seed % 100) for start in pair] for pair in ((0.1, 0.2), (0.3, 0.4)))
    return Trained(
        variant=remedy,
        seed=seed,
        config={"network": {"classes": 4}, "optimiser": {"lr": rate}},
        made={"state": "finished", "hardware": "CPU", "parameters": 12, "seconds": 1.0, "side_by_side": 1, **made},
        evaluations=({"epoch": 1.0, "loss": 1.0 - accuracy, "accuracy": accuracy},),
        similarity={"mean_cosine": ({"epoch": 0.0, "layers": before}, {"epoch": 1.0, "layers": after})},
    )


def made_up(folder: ArenaFolder, wanted: Plan, accuracies: dict[str, list[float]]) -> None:
    """An arena whose entrants score so by seed, all at the higher of two rates."""
    for name in wanted.models:
        folder.write_model(name, {"budget": None, "steps": 3, "steps_of_a_unit": 1.0, "settings": {}})
        for remedy, scores in accuracies.items():
            entrant = Entrant(name, remedy)
            folder.write_timing(entrant, Timing(0.02, 1.0 if remedy == "plain" else 1.25, 3 * 2**20, 1.0))
            for rate in wanted.rates:
                run = outcome(remedy, wanted.probe_seed, rate, rate=rate)
                folder.write_outcome(entrant, rate_run(rate), run)
            for seed, score in enumerate(scores):
                run = outcome(remedy, seed, score, rate=wanted.rates[-1])
                folder.write_outcome(entrant, seed_run(seed, wanted.rates[-1]), run)
