"""Where a model came from, and what turns text or images into its input."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

from torch import nn

_ATTRIBUTE = "unsmooth_origin"

# Models that users built with from_pretrained, or have in a pipeline: their tokenizers are looked up once.
_guessed: weakref.WeakKeyDictionary[nn.Module, Origin] = weakref.WeakKeyDictionary()


@dataclass(frozen=True)
class Origin:
    """Where a model came from.

    Args:
        id: What it was asked for by: a hub name, a folder, a file, a packaged name.
        revision: Commit on the hub, or version of the package; None for a folder or file.
        path: Folder or file on this machine that holds the weights.
        tokenizer: Its tokenizer, where it has one.
        image_processor: Its image processor, where it has one.
        notes: What a reader of its numbers should know, such as heads that the checkpoint lacks.
    """

    id: str
    revision: str | None = None
    path: str | None = None
    tokenizer: Any | None = None
    image_processor: Any | None = None
    notes: tuple[str, ...] = ()


def origin_of(model: nn.Module) -> Origin | None:
    """Where `model` came from, also through the wrappers of DDP and torch.compile; None where it does not say.

    A transformers model that was not loaded by `unsmooth.load` names its own checkpoint; its tokenizer or image
    processor is then taken from this machine's files, without a network.
    """
    inner = unwrapped(model)
    origin = getattr(inner, _ATTRIBUTE, None)
    if isinstance(origin, Origin):
        return origin
    if inner not in _guessed and (name := _name_of(inner)):
        _guessed[inner] = _guess(inner, name)
    return _guessed.get(inner)


def inside_pipeline(pipeline: Any) -> nn.Module | None:
    """The model of a transformers pipeline, which from now on reads with the pipeline's own tokenizer; else None."""
    model = getattr(pipeline, "model", None)
    if isinstance(pipeline, nn.Module) or not isinstance(model, nn.Module):
        return None
    _guessed[unwrapped(model)] = Origin(
        id=_name_of(model),
        revision=getattr(getattr(model, "config", None), "_commit_hash", None),
        tokenizer=getattr(pipeline, "tokenizer", None),
        image_processor=getattr(pipeline, "image_processor", None),
    )
    return model


def _name_of(model: nn.Module) -> str:
    """What a transformers model says that it was loaded from, or nothing."""
    name = getattr(model, "name_or_path", None) or getattr(getattr(model, "config", None), "_name_or_path", None)
    return name if isinstance(name, str) else ""


def set_origin(model: nn.Module, origin: Origin) -> None:
    """Tell `model` where it came from."""
    setattr(model, _ATTRIBUTE, origin)


def unwrapped(model: nn.Module) -> nn.Module:
    """The model inside DistributedDataParallel, DataParallel and torch.compile."""
    inside = {"DistributedDataParallel": "module", "DataParallel": "module", "OptimizedModule": "_orig_mod"}
    while (attribute := inside.get(type(model).__name__)) is not None:
        model = model.get_submodule(attribute)
    return model


def _guess(model: nn.Module, name: str) -> Origin:
    from unsmooth.models.preprocess import find_image_processor, find_tokenizer

    revision = getattr(getattr(model, "config", None), "_commit_hash", None)
    return Origin(
        id=name,
        revision=revision,
        tokenizer=find_tokenizer(name, revision=revision),
        image_processor=find_image_processor(name, revision=revision),
    )
