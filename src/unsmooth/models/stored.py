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


def parts(name: str, value: Any) -> Iterator[tuple[str, Tensor]]:
    """The plain tensors that a value of a state dict is made of, by name; what is no tensor has none.

    A quantised tensor is made of whole numbers and scales. The linear maps of torch.ao.quantization keep a pair of
    tensors, which is none itself.

    >>> [part for part, _ in parts("weight", torch.zeros(2))]
    ['weight']
    >>> [part for part, _ in parts("packed", (torch.zeros(2), None))]
    ['packed.0']
    """
    inner: dict[Any, Any] = {}
    if isinstance(value, list | tuple):
        inner = dict(enumerate(value))
    elif isinstance(value, Tensor) and _is_quantised(value):
        inner = {inside: getattr(value, inside) for inside in value.__tensor_flatten__()[0]}  # type: ignore[attr-defined]
    elif isinstance(value, Tensor) and value.is_quantized:
        inner = _of_quantised(value)
    elif isinstance(value, Tensor) and value.is_nested:
        inner = dict(enumerate(value.unbind()))
    elif isinstance(value, Tensor):
        plain = value if value.layout == torch.strided else value.to_dense()
        yield name, plain.resolve_conj().resolve_neg()  # both change numbers without a trace in memory
    for inside, part in inner.items():
        yield from parts(f"{name}.{inside}", part)


def _of_quantised(tensor: Tensor) -> dict[str, Tensor]:
    """Numbers, scales and zero points of a tensor of torch's own quantised types."""
    if tensor.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric):
        scales, zeros = torch.tensor(tensor.q_scale()), torch.tensor(tensor.q_zero_point())
    else:
        scales, zeros = tensor.q_per_channel_scales(), tensor.q_per_channel_zero_points()
    return {"numbers": tensor.int_repr(), "scales": scales, "zeros": zeros}


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
