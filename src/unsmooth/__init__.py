"""See, explain and steer how alike the tokens of a Transformer become with depth.

Names are imported when they are first used, so that ``import unsmooth`` and ``unsmooth --help`` stay quick. Where a
process imports transformers too, its `save_pretrained` and `from_pretrained` know remedied models.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

    from unsmooth import (
        evidence,
        functional,
        losses,
        models,
        monitor,
        networks,
        posthoc,
        presets,
        remedies,
        report,
        spectra,
        theory,
        training,
    )
    from unsmooth.errors import UnsmoothError
    from unsmooth.explaining import Explanation, explain, load_explanation
    from unsmooth.models.load import load
    from unsmooth.monitor import Monitor
    from unsmooth.remedies import apply, fold, undo
    from unsmooth.scanning import Scan, ScanInterrupted, compare_presets, load_scan, scan
    from unsmooth.training import train

try:
    __version__ = version("unsmooth")
except PackageNotFoundError:  # run from a source tree that is not installed
    __version__ = "0+source"

_HOME = {
    "Explanation": "unsmooth.explaining",
    "Monitor": "unsmooth.monitor",
    "Scan": "unsmooth.scanning",
    "ScanInterrupted": "unsmooth.scanning",
    "UnsmoothError": "unsmooth.errors",
    "apply": "unsmooth.remedies",
    "compare_presets": "unsmooth.scanning",
    "explain": "unsmooth.explaining",
    "fold": "unsmooth.remedies",
    "load": "unsmooth.models",
    "load_explanation": "unsmooth.explaining",
    "load_scan": "unsmooth.scanning",
    "scan": "unsmooth.scanning",
    "train": "unsmooth.training",
    "undo": "unsmooth.remedies",
}

__all__ = [
    "Explanation",
    "Monitor",
    "Scan",
    "ScanInterrupted",
    "UnsmoothError",
    "apply",
    "compare_presets",
    "evidence",
    "explain",
    "fold",
    "functional",
    "load",
    "load_explanation",
    "load_scan",
    "losses",
    "models",
    "monitor",
    "networks",
    "posthoc",
    "presets",
    "remedies",
    "report",
    "scan",
    "spectra",
    "theory",
    "train",
    "training",
    "undo",
]
_ROOMS = tuple(name for name in __all__ if name not in (*_HOME, "UnsmoothError"))


def __getattr__(name: str) -> Any:
    if name in _HOME:
        value = getattr(import_module(_HOME[name]), name)
    elif name in _ROOMS:
        value = import_module(f"unsmooth.{name}")
    else:
        raise AttributeError(f"module 'unsmooth' has no attribute {name!r}")
    globals()[name] = value
    return value


# What is put around others' saving and loading, by the module of theirs that it is for.
_INSTALLED = {"transformers.modeling_utils": "install", "peft.peft_model": "install_adapters"}


class _WithOthers(MetaPathFinder):
    """Has `unsmooth.remedies.pretrained` installed as soon as transformers is there; it is not imported for that."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """What others find, and once it has run, our part around it."""
        if name not in _INSTALLED:
            return None
        others = (finder.find_spec(name, path, target) for finder in sys.meta_path if finder is not self)
        spec = next((found for found in others if found is not None), None)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                run(module)
                _install(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _install(module: ModuleType) -> None:
    getattr(import_module("unsmooth.remedies.pretrained"), _INSTALLED[module.__name__])(module)


sys.meta_path.insert(0, _WithOthers())
for _name in _INSTALLED:
    if _name in sys.modules:
        _install(sys.modules[_name])


def __dir__() -> list[str]:
    return sorted(__all__)
