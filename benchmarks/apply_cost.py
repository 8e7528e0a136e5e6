"""What `apply` and `fold` of `sharpen` take on a model of about 100 million parameters, on one core.

    python -m benchmarks.apply_cost [--repeats 3] [--out benchmarks/results/apply_cost.json]

A BERT of the base size (12 layers, 768 wide, 12 heads) with random weights, for each basis and each start. Seconds of
the processor (one thread, so those of the clock where the core is not shared), best of some repeats on fresh copies;
and the largest difference of outputs that folding makes.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import platform
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import BertConfig, BertModel

from unsmooth import remedies
from unsmooth.files import write_whole

TARGET = 10.0


def measure(model: nn.Module, basis: str, start: str, repeats: int) -> dict[str, Any]:
    """Seconds to apply and to fold, the best of `repeats`."""
    ids = torch.arange(100, 108)[None]
    applying, folding, apart = [], [], 0.0
    for _ in range(repeats):
        twin = copy.deepcopy(model).eval()
        began = time.process_time()
        remedies.apply(twin, "sharpen", basis=basis, start=start)
        applied = time.process_time()
        with torch.no_grad():
            before = twin(ids).last_hidden_state
        paused = time.process_time()
        remedies.fold(twin)
        folding.append(time.process_time() - paused)
        applying.append(applied - began)
        with torch.no_grad():
            apart = max(apart, float((twin(ids).last_hidden_state - before).abs().max()))
    best = min(one + two for one, two in zip(applying, folding, strict=True))
    return {
        "basis": basis,
        "start": start,
        "apply_seconds": round(min(applying), 2),
        "fold_seconds": round(min(folding), 2),
        "together_seconds": round(best, 2),
        "folding_moves_outputs_by": apart,
        "held": best < TARGET,
    }


def main() -> None:
    """Run them all and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/apply_cost.json"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = BertModel(BertConfig())
    runs = []
    for basis in ("schur", "general", "orthogonal", "gram"):
        for start in ("project", "fresh"):
            runs.append(measure(model, basis, start, options.repeats))
            print(json.dumps(runs[-1]), flush=True)
    machine = {"device": "cpu", "cores": os.cpu_count(), "threads": 1, "torch": torch.__version__}
    result = {
        "what": "Processor seconds to apply and to fold sharpen on a BERT of the base size, one thread.",
        "targets": {"together_seconds": TARGET},
        "machine": {**machine, "python": platform.python_version()},
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "runs": runs,
    }
    write_whole(options.out, json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
