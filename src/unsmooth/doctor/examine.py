"""Look at everything, and say what was found."""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Iterator, Mapping, Sequence

import unsmooth
from unsmooth.doctor.belongings import DATA, DEMO
from unsmooth.doctor.check import CORE, Check, Examination
from unsmooth.doctor.machine import machine_checks, place_checks
from unsmooth.doctor.packages import import_steps, package_checks, torchvision_check
from unsmooth.doctor.probing import Outcome, probe
from unsmooth.doctor.requirements import asked_for, installed_version

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
