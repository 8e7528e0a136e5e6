"""Runs of the recipes at sizes that one GPU finishes in minutes: what they reach, beside what knowing nothing reaches.

PYTHONPATH=src python -m benchmarks.reference_runs --out runs/reference          # all of them, minutes on one H200
PYTHONPATH=src python -m benchmarks.reference_runs --only cifar100 --out DIR
python -m benchmarks.reference_runs --collect runs/reference                     # -> benchmarks/results, docs/training

Needs `unsmooth data get cifar100`, `enwik8`, `superglue`: paths are named, so that nothing is made up where one lacks.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from unsmooth import load_scan
from unsmooth.files import write_whole
from unsmooth.training import RunFolder, recipe, train
from unsmooth.training.folder import Lines
from unsmooth.training.plain import override

RESULTS = Path(__file__).parent / "results" / "training_runs.json"
TASKS = ("cb", "copa", "rte", "wic")


@dataclass(frozen=True)
class Reference:
    """A recipe with what is changed of it."""

    recipe: str
    changes: Mapping[str, Any] = field(default_factory=dict)


CRAMMED = {
    "data.name": "enwik8",
    "data.path": "data/enwik8",
    "data.vocabulary": 8192,
    "network.vocabulary": 8192,
    "depth": 8,
    "dim": 384,
    "heads": 6,
    "hidden": 768,
    "batch": 1024,
    "micro_batch": 256,
    "steps": 1200,
    "schedule.warmup": 900,
    "measuring.every": 200,
    "measuring.at": (10.0, 50.0, 100.0),
    "evaluate_every": 100,
    "checkpoint_every": 600,
}
LANGUAGE = {
    "data.name": "enwik8",
    "data.path": "data/enwik8",
    "tokenizer": "bytes",
    "network.vocabulary": 256,
    "depth": 8,
    "dim": 384,
    "heads": 6,
    "hidden": 1536,
    "length": 256,
    "memory": 256,
    "embedding_scale": 384**0.5,
    "batch": 64,
    "init": "xavier",
    "steps": 2000,
    "lr": 5e-4,
    "schedule.warmup": 200,
    "test_limit": 1000,
    "measuring.every": 400,
    "measuring.at": (10.0, 50.0, 200.0),
    "evaluate_every": 200,
    "checkpoint_every": 1000,
}
CIFAR = {
    "data.path": "data/cifar100",
    "patch": 4,
    "epochs": 30,
    "lr": 5e-4,
    "measuring.every": 2,
    "measuring.at": (0.1, 0.5, 1.0),
    "evaluate_every": 1,
    "checkpoint_every": 10,
}


def references(out: Path) -> dict[str, Reference]:
    """All runs by name; fine-tuning starts from the encoder that was trained before it."""
    encoder = {"data.encoder": str(out / "cram_bert" / "final"), "epochs": 10, "lr": 3e-5, "measuring.every": 5}
    return {
        "cifar100": Reference("vit_cifar100", CIFAR),
        "cram_bert": Reference("cram_bert", CRAMMED),
        "xl_wt103": Reference("xl_wt103", LANGUAGE),
        **{f"superglue_{task}": Reference("superglue", {**encoder, "tasks": (task,)}) for task in TASKS},
    }


def carry_out(name: str, wanted: Reference, out: Path) -> None:
    """Train one of them."""
    start = time.monotonic()
    config = override(recipe(wanted.recipe), wanted.changes)
    (folder,) = train(config, out / name)
    said = {key: round(value, 4) for key, value in folder.manifest()["last"].items()}
    print(name, f"{time.monotonic() - start:.0f} s", json.dumps(said), flush=True)


def summary(folder: RunFolder) -> dict[str, Any]:
    """A run in numbers: what it is, its evaluations, and how alike tokens were at each layer, over training."""
    log, manifest = Lines(folder.path / "log.jsonl").read(), folder.manifest()
    losses = [{key: line[key] for key in ("step", "epoch", "loss")} for line in log if line["kind"] == "train"]
    apart = max(1, len(losses) // 100)
    return {
        "manifest": {key: value for key, value in manifest.items() if key != "last"},
        "last": manifest["last"],
        "evaluations": [line for line in log if line["kind"] == "evaluation"],
        "losses": [_rounded(line) for line in losses[apart - 1 :: apart]],
        "mean_cosine": [
            {"step": line["step"], "epoch": line["epoch"], "layers": _cosines(folder.path / line["scan"])}
            for line in log
            if line["kind"] == "measurement"
        ],
        "asymmetry": [
            {"step": line["step"], "layers": [round(layer["asymmetry"], 4) for layer in line["layers"]]}
            for line in Lines(folder.path / "spectra.jsonl").read()
        ],
    }


def _cosines(scan: Path) -> list[float]:
    return [round(row.mean, 4) for row in load_scan(scan).curve("mean_cosine")]


def _rounded(line: Mapping[str, Any]) -> dict[str, Any]:
    return {key: round(value, 4) if isinstance(value, float) else value for key, value in line.items()}


def collect(out: Path) -> None:
    """Put the numbers of all runs in `out` into one file."""
    found = {path.parent.name: summary(RunFolder(path.parent)) for path in sorted(out.glob("*/manifest.json"))}
    write_whole(RESULTS, json.dumps(found, indent=1) + "\n")


def main() -> None:
    """Run, or collect."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/reference"))
    parser.add_argument("--only", action="append", help="Names; all where none is given.")
    parser.add_argument("--collect", type=Path, help="Only put the numbers of these runs together.")
    wish = parser.parse_args()
    if wish.collect:
        collect(wish.collect)
        return
    for name, wanted in references(wish.out).items():
        if not wish.only or name in wish.only:
            carry_out(name, wanted, wish.out)


if __name__ == "__main__":
    main()
