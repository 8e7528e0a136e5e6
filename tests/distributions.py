"""Packages of other people, as pip would leave them: a module and a record with entry points, in a temporary folder."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from unsmooth.registry import Registry


def install(folder: Path, package: str, source: str, entries: Mapping[str, Mapping[str, str]]) -> None:
    """Put a distribution into a folder.

    Args:
        folder: On the path, or to be put there.
        package: Name of the distribution and of its one module.
        source: Text of the module.
        entries: Entry point group to names to what they name in the module.
    """
    (folder / f"{package}.py").write_text(source, encoding="utf-8")
    information = folder / f"{package}-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    lines = []
    for group, named in entries.items():
        lines += [f"[{group}]", *(f"{name} = {package}:{target}" for name, target in named.items())]
    (information / "entry_points.txt").write_text("\n".join(lines) + "\n")


@contextmanager
def unread(*registries: Registry[Any]) -> Iterator[None]:
    """Registries as they are before other packages were looked for; what is found meanwhile is forgotten."""
    for registry in registries:
        len(registry)  # ours are there
    before = [(dict(registry._items), registry._plugins) for registry in registries]
    modules = set(sys.modules)
    for registry in registries:
        registry._filled = False
    try:
        yield
    finally:
        for registry, (items, plugins) in zip(registries, before, strict=True):
            registry._items, registry._plugins, registry._filled = items, plugins, True
        for name in set(sys.modules) - modules:
            if name.startswith("their_"):
                del sys.modules[name]
