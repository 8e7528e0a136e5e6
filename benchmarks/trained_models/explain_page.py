"""docs/explain: what a tier of knowledge is worth on trained models, every number from the explanations."""

from collections.abc import Mapping
from typing import Any


def page(results: Mapping[str, Any]) -> str:
    return ""
