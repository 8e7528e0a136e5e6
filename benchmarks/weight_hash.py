"""How fast weights are hashed, alone and beside a scan, in one run.

python -m benchmarks.weight_hash            # two cores; writes benchmarks/results/weight_hash.json

The weights are of a 12-layer encoder of 1,024 features a token, 0.4 gigabytes in float32. They are hashed by one thread
and by as many as there are cores, and the model is scanned with and without its hash. The best of the rounds counts,
since whatever else the machine does only adds time; a processor's seconds are told beside the clock's for that reason.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

import unsmooth
from unsmooth.files import write_whole
from unsmooth.models import weight_hash

RESULT = Path("benchmarks/results/weight_hash.json")
BAR = 2.0  # gigabytes a second on two cores


def best(work: Callable[[], object], rounds: int, clock: Callable[[], float] = time.perf_counter) -> float:
    """Seconds of the fastest of several rounds."""
    seconds = []
    for _ in range(rounds):
        begun = clock()
        work()
        seconds.append(clock() - begun)
    return min(seconds)


def measure(width: int, layers: int, rounds: int) -> dict[str, object]:
    """Gigabytes a second, and what the hash adds to a scan."""
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(width, 8, 2 * width, batch_first=True), 1)
    encoder.layers.extend(type(encoder.layers[0])(width, 8, 2 * width, batch_first=True) for _ in range(layers - 1))
    gigabytes = sum(weight.nbytes for weight in encoder.parameters()) / 1e9
    tokens = torch.randn(4, 64, width)
    threads = len(os.sched_getaffinity(0))

    def hashed(using: int) -> Callable[[], object]:
        def work() -> None:
            torch.set_num_threads(using)
            weight_hash(encoder)

        return work

    def scanned(fingerprint: bool) -> Callable[[], object]:
        torch.set_num_threads(threads)
        options = {"metrics": ["mean_cosine"], "batch_size": 2, "progress": False, "confounds": False}
        return lambda: unsmooth.scan(encoder, tokens, fingerprint=fingerprint, **options)  # type: ignore[arg-type]

    plain, (load, *_) = bytes(1 << 28), os.getloadavg()
    speeds = {
        "hashlib_one_thread": len(plain) / 1e9 / best(lambda: hashlib.sha256(plain), rounds),
        "weight_hash_one_thread": gigabytes / best(hashed(1), rounds),
        f"weight_hash_{threads}_threads": gigabytes / best(hashed(threads), rounds),
    }
    alone, beside = (best(scanned(fingerprint), min(rounds, 10)) for fingerprint in (False, True))
    return {
        "gigabytes": round(gigabytes, 3),
        "cores": threads,
        "rounds": rounds,
        "sha_instructions": "sha_ni" in Path("/proc/cpuinfo").read_text(),
        "gigabytes_per_second": {name: round(speed, 2) for name, speed in speeds.items()},
        "gigabytes_per_processor_second": round(gigabytes / best(hashed(threads), rounds, time.process_time), 2),
        "load_before": round(load, 1),
        "bar_gigabytes_per_second": BAR,
        "scan_seconds_without": round(alone, 3),
        "scan_seconds_with": round(beside, 3),
        "torch": torch.__version__,
        "machine": platform.machine(),
    }


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--out", type=Path, default=RESULT)
    wanted = parser.parse_args()
    found = measure(wanted.width, wanted.layers, wanted.rounds)
    print(json.dumps(found, indent=1))
    write_whole(wanted.out, json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
