"""Steps that may end the process they run in, tried in a process of their own.

`probe` starts this very file, which imports Python's library alone: ``python probe.py RESULTS STEP…`` writes a line of
JSON when a step begins and another when it ends. A step without an end is the one that took the process down; the rest
goes on in another process.
"""

from __future__ import annotations

import importlib
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PATIENCE = 240.0
"""Seconds after which a process that says nothing more is given up."""


@dataclass(frozen=True)
class Outcome:
    """What came of a step.

    Args:
        found: What it returned; None where it failed.
        problem: Why it failed, in one line; empty where it did not.
        killed: Name of the signal that ended its process, such as "SIGILL"; empty where none did.
    """

    found: Any = None
    problem: str = ""
    killed: str = ""


def probe(steps: Sequence[str], environment: Mapping[str, str] | None = None) -> dict[str, Outcome]:
    """Try steps in this order, in processes of their own.

    Args:
        steps: "import NAME", or a name of `STEPS`.
        environment: Variables to set besides those there are.
    """
    outcomes: dict[str, Outcome] = {}
    with tempfile.TemporaryDirectory() as folder:
        while left := [step for step in steps if step not in outcomes]:
            results = Path(folder) / f"{len(outcomes)}.jsonl"
            ended = _run(results, left, environment or {})
            outcomes |= _read(results, ended) or {left[0]: ended}
    return outcomes


def _run(results: Path, steps: Sequence[str], environment: Mapping[str, str]) -> Outcome:
    """Run the process, and say how it ended, as the outcome of a step that did not."""
    # The file itself, and no folder of the user's on the path: only what is installed is looked at.
    command = [sys.executable, "-P", "-W", "ignore", __file__, str(results), *steps]
    variables = {**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", **environment}
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=variables, timeout=PATIENCE, check=False)
    except subprocess.TimeoutExpired:
        return Outcome(problem=f"no answer within {PATIENCE:.0f} s")
    except OSError as error:
        return Outcome(problem=f"Python cannot be started: {error}")
    if done.returncode < 0:
        name = signal.Signals(-done.returncode).name
        return Outcome(problem=f"the process dies ({name})", killed=name)
    last = (done.stderr.strip().splitlines() or [""])[-1]
    return Outcome(problem=f"the process ends with code {done.returncode} {last}".strip())


def _read(results: Path, ended: Outcome) -> dict[str, Outcome]:
    """The steps that were begun; the last one may not have come to its end."""
    outcomes: dict[str, Outcome] = {}
    for line in results.read_text(encoding="utf-8").splitlines() if results.exists() else ():
        said = json.loads(line)
        finished = Outcome(said.get("found"), said.get("problem", ""))
        outcomes[said["step"]] = finished if len(said) > 1 else ended
    return outcomes


# Importing transformers imports next to nothing; this part of it is what a model needs.
_PART_OF = {"transformers": "PreTrainedModel"}


def try_import(name: str) -> str:
    """Import a module, and give its version."""
    module = importlib.import_module(name)
    if name in _PART_OF:
        getattr(module, _PART_OF[name])
    return str(getattr(module, "__version__", ""))


def try_torch() -> dict[str, Any]:
    """What this build of torch can use."""
    import torch

    devices = [torch.cuda.get_device_name(each) for each in range(torch.cuda.device_count())]
    works = torch.cuda.is_available()
    return {
        "version": torch.__version__,
        "cuda": torch.version.cuda,
        "devices": devices if works else [],
        "bfloat16": bool(works and torch.cuda.is_bf16_supported()),
        "processor": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
    }


def try_bfloat16() -> str:
    """A product in bfloat16: on processors that announce what they may not do, the last thing a process does."""
    import torch

    one = torch.ones(64, 64, dtype=torch.bfloat16)
    return str(float((one @ one)[0, 0]))


def try_scan() -> str:
    """A scan of a small random encoder, as a user would make it."""
    import torch

    import unsmooth

    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    found = unsmooth.scan(torch.nn.TransformerEncoder(layer, 2), torch.randn(2, 8, 16), progress=False)
    last = found.curve("mean_cosine")[-1]
    if last.layer != 2 or not math.isfinite(last.mean):
        raise ValueError(f"mean cosine {last.mean} at layer {last.layer}")
    return f"mean cosine {last.mean:.2f} at layer 2"


def try_belongings() -> list[dict[str, Any]]:
    """The models that come along and the data sets in the data folder, checked."""
    from dataclasses import asdict

    from unsmooth.doctor.checks import belongings

    return [asdict(check) for check in belongings()]


def try_plugins() -> list[dict[str, Any]]:
    """What other packages bring by entry points."""
    from dataclasses import asdict

    from unsmooth.doctor.checks import all_plugins

    return [asdict(plugin) for plugin in all_plugins()]


STEPS: dict[str, Callable[[], Any]] = {
    "torch": try_torch,
    "bfloat16": try_bfloat16,
    "scan": try_scan,
    "belongings": try_belongings,
    "plugins": try_plugins,
}


def main(results: Path, steps: list[str]) -> None:
    """Try every step and write what came of it."""
    with results.open("a", encoding="utf-8") as file:
        for step in steps:
            print(json.dumps({"step": step}), file=file, flush=True)
            outcome: dict[str, Any]
            try:
                kind, _, name = step.partition(" ")
                outcome = {"step": step, "found": try_import(name) if kind == "import" else STEPS[kind]()}
            except BaseException as error:  # whatever it is, the next step is tried
                text = " ".join(str(error).split())
                outcome = {"step": step, "problem": f"{type(error).__name__}: {text}" if text else type(error).__name__}
            print(json.dumps(outcome), file=file, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
