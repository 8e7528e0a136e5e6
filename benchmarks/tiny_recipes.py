"""Every recipe at `--size tiny`, started as a newcomer would, without data: how long it takes and what it learns.

python -m benchmarks.tiny_recipes -> benchmarks/results/tiny_recipes.json
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from unsmooth.files import write_whole
from unsmooth.training import RECIPES, RunFolder

RESULTS = Path(__file__).parent / "results" / "tiny_recipes.json"


def carry_out(name: str, folder: Path) -> dict[str, Any]:
    """Seconds of the whole command, imports and page included, and its first and last evaluation."""
    start = time.perf_counter()
    words = [sys.executable, "-m", "unsmooth", "train", name, "--size", "tiny", "--out", name]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - start
    if done.returncode:
        return {"seconds": seconds, "refused": done.stderr.strip().splitlines()[-1]}
    log = [json.loads(line) for line in (folder / name / "log.jsonl").read_text().splitlines()]
    evaluations = [line for line in log if line["kind"] == "evaluation"]
    return {
        "seconds": seconds,
        "said": next((line for line in done.stderr.splitlines() if "made-up" in line), ""),
        "data": RunFolder(folder / name).manifest()["data"]["name"],
        "first": evaluations[0],
        "last": evaluations[-1],
    }


def main() -> None:
    """Run all, print, write."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    machine = {"cores": os.cpu_count(), "torch": torch.__version__, "python": platform.python_version()}
    found: dict[str, Any] = {"machine": machine, "recipes": {}}
    with tempfile.TemporaryDirectory() as folder:
        for name in RECIPES:
            found["recipes"][name] = carry_out(name, Path(folder))
            print(name, json.dumps(found["recipes"][name]), flush=True)
    write_whole(RESULTS, json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
