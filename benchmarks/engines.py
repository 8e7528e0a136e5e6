"""An arena of 40 tiny runs through each engine: the same table, and what handing out costs.

    python -m benchmarks.engines                 # all engines -> benchmarks/results/engines.json
    python -m benchmarks.engines local ray       # these, beside what is there

A crew of so many processes could do jobs for wall x processes seconds; jobs took `job_seconds` of these. What is left
is the engine's: starting workers, which is measured apart by as many empty jobs as there are processes
(`start_seconds`; submitit pays it for every job, the others once), sending jobs there and results back, what the driver
does between jobs, and waiting at the end. `overhead` is that without the starts, as a share of the jobs' time, over the
same of the arena in place.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from unsmooth.arena import ArenaFolder, Plan, carry_out_arena, plan_arena, standings
from unsmooth.evidence.records import made
from unsmooth.executing import Crew, Driver, Job
from unsmooth.files import write_whole
from unsmooth.report.arena import cells_of, heads_of
from unsmooth.stopping import Deadline
from unsmooth.training import override, recipe

RESULTS = Path(__file__).parent / "results" / "engines.json"
ENGINES = ("here", "local", "ray", "submitit")
PROCESSES, STEPS, RUNS = 2, 10, 40
REMEDIES = ("deescalate", "rezero", "layerscale", "contranorm")
# Columns that depend on the clock.
TIMED = ("step time", "memory")


def main(words: Sequence[str] | None = None) -> int:
    """Run it; 1 where a table is another one than in place."""
    reader = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    reader.add_argument("engines", nargs="*", metavar="ENGINE", help=f"of {', '.join(ENGINES)}; by default all")
    reader.add_argument("--steps", type=int, default=STEPS, help="of each run")
    given = reader.parse_args(words)
    plan = arena(given.steps)
    found: dict[str, Any] = json.loads(RESULTS.read_text())["engines"] if RESULTS.exists() and given.engines else {}
    for engine in given.engines or ENGINES:
        found[engine] = measured(plan, engine)
        write(found, given.steps)  # what took long is kept, whatever comes after
        print(f"{engine}: {found[engine]['wall_seconds']:.1f} s, load {found[engine]['load']}", flush=True)
    for engine, one in found.items():
        print(f"{engine}: same table {one['same_table']}, overhead {one['overhead']:.1%}")
    return 0 if all(one["same_table"] for one in found.values()) else 1


def write(found: dict[str, Any], steps: int) -> None:
    """Beside what was measured in place."""
    for one in found.values():
        one["same_table"] = one["table"] == found["here"]["table"]
        one["overhead"] = round(used(one) / used(found["here"]) - 1, 4)
    about = {"about": " ".join((__doc__ or "").split("\n\n")[-1].split()), "runs": RUNS, "steps": steps}
    about |= {"processes": PROCESSES, "cores": os.cpu_count(), "made": made(torch.device("cpu"))}
    write_whole(RESULTS, json.dumps({**about, "engines": found}, indent=1, ensure_ascii=False) + "\n")


def used(one: dict[str, Any]) -> float:
    """Seconds of the crew for each second of a job, starts left out."""
    starts = one["start_seconds"] * (one["jobs"] if one["starts_for_each_job"] else one["processes"])
    return float((one["wall_seconds"] * one["processes"] - starts) / one["job_seconds"])


def arena(steps: int) -> Plan:
    """Five entrants, three rates and five seeds each."""
    changes = {"data.name": "synthetic", "steps": steps, "epochs": None, "checkpoint_every": steps}
    base = override(recipe("vit_cifar100", "tiny"), {**changes, "device": "cpu", "schedule.warmup": steps / 10})
    return plan_arena(base, REMEDIES, seeds=5, widen=0)


def measured(plan: Plan, engine: str) -> dict[str, Any]:
    """One engine: what it took, and its table."""
    crew = Crew() if engine == "here" else Crew(engine, PROCESSES, cores=1, gpus=0)
    with tempfile.TemporaryDirectory(prefix="unsmooth-") as place:
        start = time.monotonic()
        with Driver(Path(place) / "empty", crew, Deadline()) as driver:
            empty = [Job(f"empty {number}", nothing, int) for number in range(crew.processes)]
            driver.hand_out(lambda: empty)
            starting = time.monotonic() - start
        folder = ArenaFolder(Path(place) / "arena")
        start = time.monotonic()
        seconds = carry_out_arena(plan, folder, crew=crew)
        wall = time.monotonic() - start
        found = standings(plan, folder)
        assert found.made["runs"] == RUNS
        heads = heads_of(found)
        rows = [
            [cell for head, cell in zip(heads, cells_of(found, line), strict=True) if head not in TIMED]
            for line in found.lines
        ]
    return {
        "processes": crew.processes,
        "jobs": RUNS + len(plan.entrants),
        "wall_seconds": round(wall, 2),
        "job_seconds": round(seconds, 2),
        "start_seconds": round(starting, 2) if engine != "here" else 0.0,
        "starts_for_each_job": engine == "submitit",
        "load": [round(one, 1) for one in os.getloadavg()],
        "table": rows,
    }


def nothing(deadline: Deadline, tell: Any) -> int:
    """An empty job."""
    return 0


if __name__ == "__main__":
    sys.exit(main())
