"""What is tried in a process of its own, because it may end that process; run as a file, with Python's library alone.

``python probe.py RESULTS STEP…`` writes a line of JSON when a step begins and another when it ends: a step without an
end is the one that took the process down.
"""

from __future__ import annotations

import importlib
import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

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

    from unsmooth.doctor.belongings import belongings

    return [asdict(check) for check in belongings()]


def try_plugins() -> list[dict[str, Any]]:
    """What other packages bring by entry points."""
    from dataclasses import asdict

    from unsmooth.doctor.plugins import all_plugins

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
