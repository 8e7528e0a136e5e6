"""The architectures of transformers that the census asks about, and what a few of them need that no rule gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.census.batches import Batch, Maker

# Fields of configurations said by hand, by model type.
FIELDS: dict[str, dict[str, Any]] = {}
# The class to build, where the first one is not it.
CLASSES: dict[str, str] = {}
# Batches made by hand.
BATCHES: dict[str, Callable[[Maker], Batch]] = {}


def names() -> list[str]:
    """All model types of the installed transformers."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES
    from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

    return sorted({*CONFIG_MAPPING_NAMES, *MODEL_MAPPING_NAMES})


def made(model_type: str) -> tuple[Any, Batch]:
    """A tiny model of one type and a batch for it."""
    from benchmarks.census.batches import batch_for
    from benchmarks.census.build import build

    model = build(model_type, FIELDS.get(model_type), CLASSES.get(model_type))
    return model, batch_for(model, BATCHES.get(model_type))
