"""What other packages bring by an entry point, such as ``[project.entry-points."unsmooth.metrics"]``."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


class PluginWarning(UserWarning):
    """Something of another package does not work; all else does. The command tells it in one line."""


@dataclass(frozen=True)
class Plugin:
    """An entry point of another package, and what became of it.

    Args:
        group: Such as "unsmooth.metrics".
        name: The entry point's own name.
        value: What it names, such as "their_package.metrics:spread".
        package: Name and version of the distribution it is in.
        item: The name it goes by in unsmooth; empty where it failed.
        problem: Why it failed, in one line; empty where it did not.
    """

    group: str
    name: str
    value: str
    package: str
    item: str = ""
    problem: str = ""


def find_plugins(group: str, take: Callable[[Callable[[], Any]], str]) -> tuple[Plugin, ...]:
    """Load every entry point of a group; one that fails is warned of and leaves the others alone.

    Args:
        group: Name of the group.
        take: Gets a function that loads what an entry point names; registers that, and returns its name.
    """
    from importlib.metadata import entry_points

    return tuple(_loaded(entry, take) for entry in entry_points(group=group))


def unread_plugins(group: str, problem: str) -> tuple[Plugin, ...]:
    """The entry points of a group that nobody loads, with the reason."""
    from importlib.metadata import entry_points

    return tuple(
        Plugin(group, entry.name, entry.value, _package(entry), problem=problem) for entry in entry_points(group=group)
    )


def _loaded(entry: EntryPoint, take: Callable[[Callable[[], Any]], str]) -> Plugin:
    try:
        item, problem = take(entry.load), ""
    except (Exception, SystemExit) as error:  # somebody else's package must not take ours down
        item, problem = "", " ".join(str(error).split()) or type(error).__name__
        if isinstance(error, SystemExit):
            problem = f"it would end the process ({problem})"
        kind = entry.group.removeprefix("unsmooth.")
        warnings.warn(
            f"The plugin {entry.name!r} for {kind} ({entry.value!r} of {_package(entry)}) failed to load: {problem}",
            PluginWarning,
            stacklevel=2,
        )
    return Plugin(entry.group, entry.name, entry.value, _package(entry), item, problem)


def _package(entry: EntryPoint) -> str:
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist is not None else "an unknown package"
