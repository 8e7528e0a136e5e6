"""The golden set: what a refactoring must leave as it is, to the bit.

python -m benchmarks.golden make    # at one commit: digests to build/golden/digests.json, which git ignores
python -m benchmarks.golden check   # at another: the same to the bit, or 1 and what differs

About four minutes of one core. Digests are a machine's own: another processor or torch rounds otherwise. ``--only``
takes some parts alone.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import torch

from benchmarks.golden.digest import digest
from benchmarks.golden.networks import explanations, remedies, scans
from benchmarks.golden.rooms import ROOMS
from unsmooth.files import read_json, write_whole

PARTS = {part.__name__: part for part in (scans, explanations, remedies, *ROOMS)}


def digests(names: list[str]) -> dict[str, str]:
    """Digest by part and name."""
    found = {}
    for name in names:
        start = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            for what, value in PARTS[name](Path(folder)):
                found[f"{name}: {what}"] = digest(value)
        print(f"{name}: {time.perf_counter() - start:.0f} s", flush=True)
    return found


def _commit() -> str:
    return subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()


def main() -> int:
    """Write the digests, or compare with those that were written."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=("make", "check"))
    parser.add_argument("--file", type=Path, default=Path("build/golden/digests.json"))
    parser.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS))
    options = parser.parse_args()
    before = read_json(options.file) if options.file.exists() else {}
    if options.verb == "check" and not before:
        parser.error(f"no digests in {options.file}: run make at the commit to compare with")
    # The width of a terminal and threads change what is printed and how sums are rounded.
    os.environ |= {"COLUMNS": "120", "NO_COLOR": "1", "TERM": "dumb", "TOKENIZERS_PARALLELISM": "false"}
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    found = digests(options.only)
    if options.verb == "make":
        others = before.get("digests", {}).items()
        kept = {name: one for name, one in others if name.partition(":")[0] not in options.only}
        content = {"commit": _commit(), "torch": torch.__version__, "digests": {**kept, **found}}
        write_whole(options.file, json.dumps(content, indent=1) + "\n")
        print(f"{len(found)} digests in {options.file}")
        return 0
    wanted = {name: one for name, one in before["digests"].items() if name.partition(":")[0] in options.only}
    differing = [name for name in {**wanted, **found} if wanted.get(name) != found.get(name)]
    for name in differing:
        print(f"  {name}: {'new' if name not in wanted else 'gone' if name not in found else 'differs'}")
    print(f"{len(found)} digests, {len(differing)} differ from those of {before['commit']}")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
