"""The numbers of a weight, however it is kept: whole, sharded over processes, offloaded, or quantised.

Libraries are known by what their tensors and hooks can do, so none of them is imported.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

# Linear maps of bitsandbytes: int8 rows in `CB`, the largest size of each row in `SCB`.
_ROW_SCALED = "Linear8bitLt"


def stored(module: nn.Module, name: str) -> Tensor:
    """The weight `name` of `module` as one tensor of its own numbers; quantised ones are written out.

    A weight sharded by FSDP2 is gathered, so that all processes must ask for it. One that accelerate has offloaded is
    read from where it is kept. What has no numbers, or none that are known, comes back as it is.

    >>> layer = nn.Linear(2, 3)
    >>> stored(layer, "weight") is layer.weight
    True
    """
    scaled = _row_scaled(module) if name == "weight" else None
    if scaled is not None:
        int8_OI, largest_O = scaled
        return int8_OI.float() * (largest_O.float() / 127.0).unsqueeze(-1)
    tensor = gathered(at_hand(module, name))
    return tensor.dequantize() if _is_quantised(tensor) else tensor


def at_hand(module: nn.Module, name: str) -> Tensor:
    """The tensor `name` of `module`, also where accelerate keeps it on another device or on the disk meanwhile."""
    tensor: Tensor = getattr(module, name)
    if not tensor.is_meta:
        return tensor
    for hook in hooks_of(module):
        kept = getattr(hook, "weights_map", None)
        if isinstance(kept, Mapping) and name in kept:
            found: Tensor = kept[name]
            return found
    return tensor


def gathered(tensor: Tensor) -> Tensor:
    """All of a tensor that is sharded over processes; any other as it is."""
    whole = getattr(tensor, "full_tensor", None)
    return tensor if whole is None else whole()


def parts(name: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    """The plain tensors that a tensor is made of, by name: itself, or what a quantised one keeps inside.

    >>> [part for part, _ in parts("weight", torch.zeros(2))]
    ['weight']
    """
    if not _is_quantised(tensor):
        yield name, tensor
        return
    for inside in tensor.__tensor_flatten__()[0]:  # type: ignore[attr-defined]
        yield from parts(f"{name}.{inside}", getattr(tensor, inside))


def is_quantised(module: nn.Module) -> bool:
    """Whether a linear map in `module` keeps its weight in fewer bits, and may round what it reads as well.

    >>> is_quantised(nn.Linear(2, 2))
    False
    """
    return any(
        _row_scaled(inner) is not None or any(map(_is_quantised, inner.parameters(recurse=False)))
        for inner in module.modules()
    )


def hooks_of(module: nn.Module) -> tuple[Any, ...]:
    """The hooks that accelerate has put on a module."""
    hook = getattr(module, "_hf_hook", None)
    return () if hook is None else tuple(getattr(hook, "hooks", (hook,)))


def _is_quantised(tensor: Tensor) -> bool:
    """Whether it is of a class that knows how to write itself out, as torchao's are."""
    own = type(tensor).dequantize is not Tensor.dequantize
    return own and hasattr(tensor, "__tensor_flatten__")


def _row_scaled(module: nn.Module) -> tuple[Tensor, Tensor] | None:
    """Numbers and scales of a map of bitsandbytes, which moves both to `state` when it first runs."""
    if all(base.__name__ != _ROW_SCALED for base in type(module).__mro__):
        return None
    for place in (getattr(module, "state", None), getattr(module, "weight", None)):
        numbers, scales = getattr(place, "CB", None), getattr(place, "SCB", None)
        if isinstance(numbers, Tensor) and isinstance(scales, Tensor) and numbers.dtype == torch.int8:
            return numbers, scales
    return None
