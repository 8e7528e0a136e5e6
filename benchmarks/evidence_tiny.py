"""Every claim at the smallest scale, as CI runs them: how long each takes, runs that claims share counted once.

python -m benchmarks.evidence_tiny -> benchmarks/results/evidence_tiny.json
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from unsmooth.evidence import CLAIMS, Bench, run_claim
from unsmooth.evidence.claim import in_order
from unsmooth.files import write_whole

RESULTS = Path(__file__).parent / "results" / "evidence_tiny.json"


def timed(folder: Path) -> dict[str, float]:
    """Claim to seconds, in the order of the ledger."""
    bench = Bench(scale="tiny", out=folder / "evidence", runs=folder / "runs", device="cpu")
    found = {}
    for claim in (one for one in in_order() if not one.waits_for):
        start = time.perf_counter()
        CLAIMS[claim.id].judge(run_claim(claim, bench).measured)
        found[claim.id] = round(time.perf_counter() - start, 2)
        print(f"{claim.id}: {found[claim.id]} s", flush=True)
    return found


def main() -> None:
    """Run all, print, write."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        seconds = timed(Path(folder))
    found: dict[str, Any] = {
        "machine": {"cores": os.cpu_count(), "torch": torch.__version__, "python": platform.python_version()},
        "threads": torch.get_num_threads(),
        "seconds": seconds,
        "total_seconds": round(sum(seconds.values()), 1),
    }
    write_whole(RESULTS, json.dumps(found, indent=1) + "\n")
    print(f"all: {found['total_seconds']} s")


if __name__ == "__main__":
    main()
