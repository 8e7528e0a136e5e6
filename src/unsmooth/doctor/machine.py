"""What torch was built for, what this machine can do, and where files may be written."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from unsmooth.doctor.check import Check
from unsmooth.doctor.probing import Outcome, probe
from unsmooth.errors import UnsmoothError
from unsmooth.files import check_room

MACHINE, PLACES = "machine", "places to write"
_LIMIT, _LIMITED = "ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16"


def machine_checks(outcomes: Mapping[str, Outcome]) -> Iterator[Check]:
    """Processor, CUDA, bfloat16."""
    facts = outcomes["torch"].found
    if facts is None:
        yield Check(MACHINE, "torch", "broken", outcomes["torch"].problem, "the core first")
        return
    yield Check(MACHINE, "processor", "ok", f"{facts['processor']}, {facts['threads']} threads")
    if facts["cuda"] is None:
        yield Check(MACHINE, "CUDA", "note", f"not in this build of torch ({facts['version']})")
    elif not facts["devices"]:
        hint = "nvidia-smi, to see whether the driver is there"
        yield Check(MACHINE, "CUDA", "note", f"{facts['cuda']} in this build of torch, and no device", hint)
    else:
        yield Check(MACHINE, "CUDA", "ok", f"{facts['cuda']}: {', '.join(facts['devices'])}")
        said = "supported" if facts["bfloat16"] else "not supported"
        yield Check(MACHINE, "bfloat16 on CUDA", "ok" if facts["bfloat16"] else "note", said)
    yield bfloat16_check(outcomes["bfloat16"])


def bfloat16_check(tried: Outcome) -> Check:
    """Products in bfloat16 on the processor.

    Virtual machines may announce AMX and not allow it: the first such product is an illegal instruction. Then it is
    tried once more without AMX.
    """
    name = "bfloat16 on the processor"
    if not tried.problem:
        limit = os.environ.get(_LIMIT)
        return Check(MACHINE, name, "ok", f"works with {_LIMIT}={limit}" if limit else "works")
    hint = "float32"
    if tried.killed == "SIGILL" and not probe(["bfloat16"], {_LIMIT: _LIMITED})["bfloat16"].problem:
        hint = f"export {_LIMIT}={_LIMITED}, with which it works"
    return Check(MACHINE, name, "broken", f"products fail: {tried.problem}", hint)


def place_checks() -> Iterator[Check]:
    """Whether files can be written where they go."""
    cache = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    places = {
        "this folder (scans, runs and data go here)": Path.cwd() / "scans",
        "the folder for temporary files": Path(tempfile.gettempdir()) / "unsmooth",
        "the cache of the Hugging Face hub": cache,
    }
    for name, place in places.items():
        try:
            check_room(place)
        except UnsmoothError as error:
            yield Check(PLACES, name, "broken", " ".join(str(error).split()))
        else:
            yield Check(PLACES, name, "ok", str(place if place is cache else place.parent))
