"""Every remedy, saved in every way and loaded in every way: is it there, or does loading stop?

    python -m benchmarks.remedy_saving [--out benchmarks/results/remedy_saving.json]

On the first tiny model of transformers that can have the remedy, with its parameters moved and a step of a Trainer
taken. "equal": the same outputs to the bit, with weights that lie alike in memory. "refused": an error. "lost": all
else. The folders are also loaded by a process that cannot import unsmooth, where "equal" cannot be. Exits with 1 if any
is lost.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from accelerate import Accelerator, load_checkpoint_in_model
from tests.remedies.hosts import TestHost
from tests.remedies.settings import SETTINGS
from tests.remedies.test_pretrained import NAMES, remedied, said, trainer
from torch import nn

import unsmooth
from unsmooth.files import write_whole
from unsmooth.models.quiet import quiet

RUN, OWN, WEIGHTS = "a Trainer's checkpoint", "save_pretrained", "accelerator.save_model"
WITHOUT = """
import json, sys
class Blocked:
    def find_spec(self, name, *rest):
        if name.split(".")[0] == "unsmooth":
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Blocked())
import transformers
outcomes = []
for name, way, folder, kind in json.loads(sys.stdin.read()):
    for loader in ("AutoModel", kind):
        try:
            getattr(transformers, loader).from_pretrained(folder)
            found = "lost"
        except Exception:
            found = "refused"
        how = "AutoModel" if loader == "AutoModel" else "the class"
        outcomes.append((name, f"{way}, {how}.from_pretrained without unsmooth", found))
print(json.dumps(outcomes))
"""


def written(model: Any, host: TestHost, folder: Path) -> dict[str, Path]:
    """A folder for each way to save a model, which a Trainer has trained for a step."""
    run = trainer(model, host, folder / "run", max_steps=1, save_strategy="steps", save_steps=1)
    run.train()
    run.save_model(folder / "saved")
    model.eval().save_pretrained(folder / "own")
    accelerator = Accelerator(cpu=True)
    model.save_pretrained(folder / "idiom", state_dict=accelerator.get_state_dict(model))
    accelerator.save_model(model, folder / "weights")
    return {
        OWN: folder / "own",
        RUN: folder / "run" / "checkpoint-1",
        "Trainer.save_model": folder / "saved",
        "save_pretrained(state_dict=accelerator.get_state_dict(model))": folder / "idiom",
        WEIGHTS: folder / "weights",
    }


def outcome(host: TestHost, model: nn.Module, load: Callable[..., Any], *given: Any) -> str:
    """What came of a way to load."""
    try:
        found = load(*given)
    except (ValueError, RuntimeError):
        return "refused"
    return "equal" if torch.equal(said(host, found), said(host, model)) else "lost"


def into(other: nn.Module, folder: Path) -> nn.Module:
    """The weights that accelerate wrote, in a model that is there."""
    load_checkpoint_in_model(other, str(folder), strict=True)
    return other


def outcomes(name: str, model: Any, host: TestHost, folders: dict[str, Path]) -> dict[str, str]:
    """What came of each way to load each folder, with unsmooth imported."""
    found = {}
    for way, folder in folders.items():
        if way == WEIGHTS:
            other = unsmooth.apply(host.model(seed=1), name, **next(iter(SETTINGS[name].values())).options)
            found[f"{way}, into the same remedies"] = outcome(host, model, into, other, folder)
            found[f"{way}, into a plain model"] = outcome(host, model, into, host.model(), folder)
        else:
            found[f"{way}, the class.from_pretrained"] = outcome(host, model, type(model).from_pretrained, folder)
            found[f"{way}, unsmooth.load"] = outcome(host, model, unsmooth.load, folder)
    return found


def main() -> None:
    """Measure, count and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/remedy_saving.json"))
    out = parser.parse_args().out
    each: dict[str, dict[str, str]] = {}
    with TemporaryDirectory() as place, quiet():
        jobs = []
        for name in NAMES:
            host, model = remedied(name)
            folders = written(model, host, Path(place, name))
            each[name] = outcomes(name, model, host, folders)
            jobs += [(name, way, str(at), type(model).__name__) for way, at in folders.items() if way != WEIGHTS]
        command = [sys.executable, "-c", WITHOUT]
        done = subprocess.run(command, input=json.dumps(jobs), capture_output=True, text=True, check=True)
    for name, way, found in json.loads(done.stdout):
        each[name][way] = found
    ways = dict.fromkeys(way for one in each.values() for way in one)
    counts = {way: dict(Counter(one[way] for one in each.values())) for way in ways}
    total = Counter(found for one in each.values() for found in one.values())
    content = {"remedies": len(each), "counts": counts, "total": dict(total), "each": each}
    write_whole(out, json.dumps(content, indent=1) + "\n")
    print(json.dumps({key: content[key] for key in ("remedies", "counts", "total")}, indent=1))
    sys.exit(1 if total["lost"] else 0)


if __name__ == "__main__":
    main()
