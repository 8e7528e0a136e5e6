"""Try steps in a process of their own; one that ends the process is told, and the rest goes on in another."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
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
    """Try the steps of `unsmooth.doctor.probe`, in this order.

    Args:
        steps: "import NAME", or a name of `unsmooth.doctor.probe.STEPS`.
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
    command = [sys.executable, "-P", "-W", "ignore", str(Path(__file__).with_name("probe.py")), str(results), *steps]
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
