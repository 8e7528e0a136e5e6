"""Where the stacks of blocks are in a model, by what its modules are and hold; what each stack is called.

A stack is a list of siblings that hold attention: "layers.0", "layers.1", .... No name of a class is known here. A list
of lists (the stages of a Swin) is no stack of its own, its blocks are; a list inside a block (the layers of a T5
block, the heads of an attention) is none either. What is found so is a proposal, which a pass over data verifies.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from torch import nn

_ATTENTION = re.compile(r"attention|attn|(^|_)att(_|$)|multi_?head", re.IGNORECASE)
_QUERIES = re.compile(r"(\w+_)?(qkv|q_proj|to_q|query|query_key_value|w?q|q_lin|wqkv)(_proj)?", re.IGNORECASE)
_MLP = re.compile(r"mlp|ff|feed|fc\d?$|dense|linear\d", re.IGNORECASE)

_LEADING = re.compile(r"(cls|class|dist|distillation|register|reg)_?(tokens?|embedding)")

Blocks = dict[str, nn.Module]


def pattern_of(path: str) -> str:
    """The pattern that a block shares with its neighbours in a stack.

    >>> pattern_of("encoder.layer.11"), pattern_of("encoder.albert_layer_groups.0.albert_layers.0")
    ('encoder.layer.*', 'encoder.albert_layer_groups.*.albert_layers.*')
    """
    return re.sub(r"(^|(?<=\.))\d+(?=\.|$)", "*", path)


def holding_attention(model: nn.Module) -> set[str]:
    """The paths of all modules that have attention inside them.

    Attention is a module that calls itself so and has weights, or one that makes queries; a module that does so itself,
    beside an MLP, is a block that holds it.

    >>> layer = nn.TransformerEncoderLayer(4, 2, 8)
    >>> sorted(holding_attention(nn.Sequential(layer, nn.Linear(4, 4))))
    ['', '0']
    """
    found: set[str] = set()
    for path, module in model.named_modules():
        children = [name for name, child in module.named_children() if child is not None]
        makes = any(map(_QUERIES.fullmatch, children))
        if makes and any(map(_MLP.match, children)):
            found.add(path)
        if makes or _says_attention(path.rpartition(".")[2], module):
            while path:
                path = path.rpartition(".")[0]
                found.add(path)
    return found


def _says_attention(name: str, module: nn.Module) -> bool:
    said = isinstance(module, nn.MultiheadAttention) or _ATTENTION.search(f"{name} {type(module).__name__}")
    return bool(said) and any(one.ndim > 1 for one in module.parameters())


def numbered(model: nn.Module) -> dict[str, Blocks]:
    """Modules that have a number for a name, by the pattern of their paths."""
    found: dict[str, Blocks] = {}
    for path, module in model.named_modules():
        if path.rpartition(".")[2].isdecimal():
            found.setdefault(pattern_of(path), {})[path] = module
    return found


def lists_with_attention(model: nn.Module) -> list[Blocks]:
    """Every list of which some member holds attention, stages and parts of blocks too."""
    holding = holding_attention(model)
    return [blocks for blocks in numbered(model).values() if holding & blocks.keys()]


def proposed(model: nn.Module, any_kind: bool = False) -> list[Blocks]:
    """Stacks of blocks by path, in the order of the modules; with `any_kind` whether they hold attention or not.

    >>> layers = [nn.TransformerEncoderLayer(4, 2, 8) for _ in range(3)]
    >>> [list(blocks) for blocks in proposed(nn.Sequential(nn.Linear(4, 4), *layers))]
    [['1', '2', '3']]
    """
    holding = {path for path, _ in model.named_modules()} if any_kind else holding_attention(model)
    lists = {pattern: blocks for pattern, blocks in numbered(model).items() if holding & blocks.keys()}
    kept = {pattern: _alike(blocks, holding) for pattern, blocks in lists.items() if not is_inside(pattern, lists)}
    found: list[Blocks] = []
    waiting = list(kept.items())
    while waiting:
        pattern, blocks = waiting.pop(0)
        inner = {one: own for one, own in lists.items() if one.startswith(f"{pattern}.")}
        widens = len({width_of(block) for block in blocks.values()}) > 1
        stages = [one for one, own in inner.items() if (widens or _is_whole(own, holding)) and not any_kind]
        if stages:
            waiting[:0] = [(one, _alike(lists[one], holding)) for one in stages if not is_inside(one, stages)]
        else:
            found.append(blocks)
    several = [blocks for blocks in found if _count(model, blocks) > 1]
    return several or [blocks for blocks in found if any(_is_layer(module) for module in blocks.values())]


def is_inside(pattern: str, others: Iterable[str]) -> bool:
    """Whether a list lies inside a member of another one."""
    return any(pattern.startswith(f"{other}.") for other in others)


def _alike(blocks: Blocks, holding: set[str]) -> Blocks:
    """Those that hold attention, and their neighbours that are layers of the same kind: of a hybrid, or by class."""
    kinds = {type(module) for path, module in blocks.items() if path in holding}
    hybrid = all(map(_is_layer, blocks.values()))
    return {path: module for path, module in blocks.items() if hybrid or type(module) in kinds}


def _is_layer(module: nn.Module) -> bool:
    kinds = [base.__name__ for base in type(module).__mro__]
    return "GradientCheckpointingLayer" in kinds or kinds[0].endswith(("Layer", "Block"))


def _is_whole(blocks: Blocks, holding: set[str]) -> bool:
    """Whether it is all of its lists: each member holds attention, and those of one list are of one class."""
    by_list: dict[str, list[str]] = {}
    for path in blocks:
        by_list.setdefault(path.rpartition(".")[0], []).append(path)
    return all(
        holding.issuperset(paths) and len({type(blocks[path]) for path in paths}) == 1 for paths in by_list.values()
    )


def width_of(block: nn.Module) -> int:
    """The number of features that most of its norms and biases have."""
    widths = widths_of(block)
    return max(widths, key=lambda width: widths[width], default=0)


def _count(model: nn.Module, blocks: Blocks) -> int:
    """How many places they have: one module may stand in several."""
    parents = {path.rpartition(".")[0] for path in blocks}
    members = set(blocks.values())
    return sum(child in members for path in parents for child in model.get_submodule(path)._modules.values())


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


def leading_tokens(model: nn.Module) -> int:
    """How many class tokens and registers a model has learned, which it puts in front of an image's patches.

    >>> import torch
    >>> model = nn.Module()
    >>> model.cls_token, model.register_tokens = nn.Parameter(torch.zeros(1, 1, 8)), nn.Parameter(torch.zeros(1, 4, 8))
    >>> leading_tokens(model)
    5
    """
    found = (one for name, one in model.named_parameters() if _LEADING.fullmatch(name.rpartition(".")[2]))
    return sum(one.shape[-2] if one.ndim > 1 else 1 for one in found)


def widths_of(block: nn.Module) -> Mapping[int, int]:
    """How often each number of features is that of a norm or a bias in a block."""
    found: dict[int, int] = {}
    for one in block.parameters():
        if one.ndim == 1:
            found[len(one)] = found.get(len(one), 0) + 1
    return found
