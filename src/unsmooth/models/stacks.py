"""Several stacks in one model: what each is called, and which part of the model holds it alone."""

from __future__ import annotations

import re
from collections.abc import Sequence

from torch import nn


def pattern_of(path: str) -> str:
    """The pattern that a block shares with its neighbours in a stack.

    >>> pattern_of("encoder.layer.11"), pattern_of("encoder.albert_layer_groups.0.albert_layers.0")
    ('encoder.layer.*', 'encoder.albert_layer_groups.*.albert_layers.*')
    """
    return re.sub(r"(^|(?<=\.))\d+(?=\.|$)", "*", path)


def parts_of(paths: Sequence[str]) -> list[str]:
    """The shortest path that leads to each stack and to no other, from the path of one block of each.

    >>> parts_of(["text_model.encoder.layers.0", "vision_model.encoder.layers.0"])
    ['text_model', 'vision_model']
    >>> parts_of(["model.encoder.layers.0", "model.decoder.layers.0"])
    ['model.encoder', 'model.decoder']
    """
    steps = [path.split(".") for path in paths]
    found = []
    for own in steps:
        others = [other for other in steps if other is not own]
        lengths = (n for n in range(len(own)) if all(other[:n] != own[:n] for other in others))
        found.append(".".join(own[: next(lengths, len(own))]))
    return found


def names_of(parts: Sequence[str]) -> list[str]:
    """What tells the parts from one another, in words.

    >>> names_of(["text_model", "vision_model"]), names_of(["module.encoder", "module.decoder"])
    (['text', 'vision'], ['encoder', 'decoder'])
    """
    steps = [part.split(".") for part in parts]
    shared = 0
    while all(len(own) > shared + 1 and own[shared] == steps[0][shared] for own in steps):
        shared += 1
    return [".".join(step.removesuffix("_model") for step in own[shared:]) for own in steps]


def called_part(model: nn.Module, path: str) -> nn.Module:
    """The module at `path`, or the model where that is a mere list, which nobody calls."""
    found = model.get_submodule(path)
    return model if isinstance(found, nn.ModuleList | nn.ModuleDict) else found
