"""Which packages unsmooth asks for, by extra, as its own metadata says."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import metadata

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
