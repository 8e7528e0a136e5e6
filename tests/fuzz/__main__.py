"""``python -m tests.fuzz --seconds 600 --seed 1``: every part of the fuzz, one after the other."""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

import torch

import tests.fuzz
from tests.fuzz.outcome import Outcome
from unsmooth.files import write_whole


def parts() -> dict[str, Any]:
    """The modules of this package that have a `run`, by name."""
    names = sorted(one.name for one in iter_modules(tests.fuzz.__path__) if not one.name.startswith(("_", "test_")))
    found = {name: import_module(f"tests.fuzz.{name}") for name in names}
    return {name: module for name, module in found.items() if hasattr(module, "run")}


def main(words: list[str]) -> int:
    """Run them, print what they found, and end with 1 where that is anything."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("--seconds", type=float, default=600.0, help="of each part")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tries", type=int, default=None, help="of each part, at most")
    parser.add_argument("--first", action="store_true", help="end each part at its first finding")
    parser.add_argument("--out", type=Path, help="write what was tried and found into this JSON file")
    parser.add_argument("--only", choices=sorted(parts()), action="append")
    given = parser.parse_args(words)
    wrong, told = 0, {}
    for name, module in parts().items():
        if given.only and name not in given.only:
            continue
        begun = time.monotonic()
        outcome: Outcome = module.run(given.seed, given.seconds, given.tries, given.first)
        share = outcome.past / max(outcome.tries, 1)
        print(f"{name}: {outcome.tries:,} tries, {share:.0%} past the first check, {len(outcome.findings)} findings")
        for reader, (past, tries) in sorted(outcome.counts.items()):
            print(f"  {reader}: {tries:,} tries, {past / max(tries, 1):.0%} past the first check")
        print("\n".join(outcome.findings), flush=True)
        wrong += len(outcome.findings)
        told[name] = {"seed": given.seed, **asdict(outcome), "seconds": round(time.monotonic() - begun)}
    if given.out:
        versions = {"python": platform.python_version(), "torch": torch.__version__, "machine": platform.machine()}
        before = json.loads(given.out.read_text())["parts"] if given.out.exists() else {}
        write_whole(given.out, json.dumps({"versions": versions, "parts": before | told}, indent=1) + "\n")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
