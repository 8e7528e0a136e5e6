"""The catalogue of the theory: one file per part of it; importing this package registers its cases."""

import importlib
import pkgutil

from tests.theory.case import CASES

for _module in sorted(module.name for module in pkgutil.iter_modules(__path__)):
    importlib.import_module(f"{__name__}.{_module}")

__all__ = ["CASES"]
