"""Tiny models with random weights, in which no norm, gate or bias is neutral."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from benchmarks.census import shrink


def classes_of(kind: type) -> list[type]:
    """Model classes of transformers that are built from one kind of configuration."""
    from transformers import PreTrainedModel

    package = importlib.import_module(kind.__module__.rsplit(".", 1)[0])
    found = []
    for info in pkgutil.iter_modules(package.__path__):
        if not info.name.startswith("modeling_"):
            continue
        module = importlib.import_module(f"{package.__name__}.{info.name}")
        for name, one in vars(module).items():
            if (
                inspect.isclass(one)
                and issubclass(one, PreTrainedModel)
                and getattr(one, "config_class", None) is kind
                and one.__module__ == module.__name__
                and not name.endswith("PreTrainedModel")
            ):
                found.append(one)
    return found


def class_for(model_type: str, kind: type, named: str | None = None) -> type:
    """The class to build: that of the auto mapping, else the first that is no head, else the first."""
    from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

    found = classes_of(kind)
    if not found:
        raise NoModelError(f"no model class of transformers is built from {kind.__name__}")
    wanted = named or MODEL_MAPPING_NAMES.get(model_type)
    wanted = wanted[0] if isinstance(wanted, tuple) else wanted
    by_name = [one for one in found if one.__name__ == wanted]
    plain = [one for one in found if "For" not in one.__name__]
    whole = [one for one in plain if one.__name__.endswith(("Model", "Backbone", "Transformer"))]
    return (by_name or whole or plain or found)[0]


@dataclass(frozen=True)
class Made:
    """A model, what it is called with, and what is handed to the library."""

    model: nn.Module
    batch: dict[str, Any]
    data: Any


class NoModelError(Exception):
    """There is nothing to build."""


@torch.no_grad()
def stir(model: nn.Module, seed: int = 0) -> nn.Module:
    """Change all weights so that no norm is the identity, no gate zero, and attention is no average.

    Matrices keep the scale that keeps a stream's, numbers that have a structure (decays, time steps) keep it.
    """
    generator = torch.Generator().manual_seed(seed)
    tables = {id(one.weight) for one in model.modules() if isinstance(one, nn.Embedding)}
    for parameter in model.parameters():
        if not parameter.is_floating_point() or parameter.numel() == 0:
            continue
        noise = torch.randn(parameter.shape, generator=generator)
        spread = float(parameter.float().std()) if parameter.numel() > 1 else 0.0
        middle = abs(float(parameter.float().mean()))
        if parameter.ndim < 2 or middle > max(spread, 1e-8):
            parameter.copy_((parameter + 0.15 * noise * parameter.abs().clamp(min=0.5)).to(parameter.dtype))
        elif id(parameter) in tables:
            parameter.copy_((0.6 * noise).to(parameter.dtype))
        else:
            fan_in = parameter[0].numel() if parameter.ndim > 1 else 1
            parameter.copy_((0.8 * noise / max(fan_in, 1) ** 0.5).to(parameter.dtype))
    return model


def build(model_type: str, overrides: dict[str, Any] | None = None, named: str | None = None) -> nn.Module:
    """A tiny random model of one type of transformers, in float32 and evaluation mode."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    torch.manual_seed(0)
    kind = CONFIG_MAPPING[model_type]
    chosen = class_for(model_type, kind, named)
    config = shrink.small(kind, overrides=overrides)
    model = chosen(config).float().eval()
    return stir(model)
