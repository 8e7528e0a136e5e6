"""Reading parts of a block: a module, a number, the weights of a linear map, a norm; or saying what is not there."""

from __future__ import annotations

import copy
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn

from unsmooth.errors import UnsmoothError, expected
from unsmooth.models.stored import gathered, stored
from unsmooth.models.value_projection import Norm

_DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
# Linear maps that only write x Wᵀ + b in another way; the second is of bitsandbytes, with a W in 8 bits.
_OWN_FORWARD = {"FalconLinear", "Linear8bitLt"}

Weights = tuple[Tensor, Tensor | None]


def refuse(block: nn.Module, what: str, got: str) -> UnsmoothError:
    """The error for a block that is not laid out as its family is."""
    return expected(
        f"{what} in {type(block).__name__}",
        got,
        "the model as its library builds it, with float weights and adapters merged",
    )


def part(block: nn.Module, path: str) -> nn.Module:
    """The module at `path` inside `block`."""
    try:
        return block.get_submodule(path)
    except AttributeError:
        raise refuse(block, f"a module {path!r}", "none") from None


def number(block: nn.Module, *paths: str) -> int:
    """The first integer found at dotted attribute paths, which differ between versions of a library.

    >>> number(nn.Sequential(nn.Linear(3, 5)), "0.width", "0.out_features")
    5
    """
    for path in paths:
        module, _, attribute = path.partition(".")
        try:
            found = attrgetter(attribute)(block.get_submodule(module))
        except AttributeError:
            continue
        if isinstance(found, int):
            return found
    raise refuse(block, f"a number at {' or '.join(map(repr, paths))}", "none")


def readable(block: nn.Module, tensor: Tensor, what: str) -> Tensor:
    """The values of a weight, detached and in float32 or better; `stored` has written a quantised one out."""
    values = gathered(tensor).detach()
    if values.dtype not in _DTYPES or type(values) not in (Tensor, nn.Parameter):
        kind = f"{type(tensor).__name__} of {values.dtype}".replace("torch.", "")
        raise refuse(block, f"float weights at {what!r}", f"{kind}, which is quantised")
    if values.is_meta:
        raise refuse(block, f"weights at {what!r}", "a meta tensor without values")
    return values.float() if values.dtype in (torch.bfloat16, torch.float16) else values


def linear_weights(block: nn.Module, path: str) -> Weights:
    """Weight as (in, out) and bias of the linear map at `path`: nn.Linear stores (out, in), Conv1D (in, out).

    >>> weight_IO, bias_O = linear_weights(nn.Sequential(nn.Linear(3, 5, bias=False)), "0")
    >>> tuple(weight_IO.shape), bias_O
    ((3, 5), None)
    """
    module = part(block, path)
    names = _class_names(module)
    if hasattr(module, "base_layer") and hasattr(module, "get_delta_weight"):
        return _with_adapters(block, path, module)
    plain = isinstance(module, nn.Linear) and type(module).forward is nn.Linear.forward
    is_conv1d = "Conv1D" in names and hasattr(module, "nf")
    if not (plain or is_conv1d or names & _OWN_FORWARD):
        # An adapter (LoRA) or a quantised layer may show the weight it wraps, which is not the map it applies.
        raise refuse(block, f"an nn.Linear at {path!r}", type(module).__name__)
    weight = readable(block, stored(module, "weight"), path)
    return weight if is_conv1d else weight.mT, optional(block, path, "bias")


def _with_adapters(block: nn.Module, path: str, module: Any) -> Weights:
    """Of a linear map with low-rank adapters that are added to it, as PEFT's LoRA has them: all that are on."""
    weight_IO, bias_O = linear_weights(block, f"{path}.base_layer")
    names = () if module.merged or module.disable_adapters else module.active_adapters
    for name in (one for one in names if one in module.lora_A):
        if getattr(module, "use_dora", {}).get(name) or getattr(module, "lora_variant", {}).get(name):
            raise refuse(block, f"adapters that are added at {path!r}", "a variant of LoRA that is not")
        # It stores as its base layer does: (out, in), or (in, out) for Conv1D.
        delta = readable(block, module.get_delta_weight(name), path)
        weight_IO = weight_IO + (delta if "Conv1D" in _class_names(module.base_layer) else delta.mT)
    return weight_IO, bias_O


def norm_at(block: nn.Module, path: str) -> Norm:
    """The norm at `path`, by what it does to vectors, whatever its class is called.

    >>> norm_at(nn.Sequential(nn.LayerNorm(3, eps=0.5, bias=False)), "0").eps
    0.5
    """
    module = part(block, path)
    if isinstance(module, nn.Identity):
        return Norm("none", None, None, 0.0)
    values, bias = (
        next((found for name in names if (found := optional(block, path, name)) is not None), None)
        for names in (("weight", "gamma", "scale"), ("bias", "beta"))
    )
    if isinstance(module, nn.LayerNorm) and type(module).forward is nn.LayerNorm.forward:
        return Norm("layer", values, bias, module.eps)
    norm = _like(module, values, bias)
    if norm is None:
        raise refuse(block, f"a LayerNorm or an RMSNorm at {path!r}", type(module).__name__)
    return norm


def adds_one(norm: nn.Module) -> bool:
    """Whether a norm multiplies by one more than its weight, as Gemma's do: whoever changes the weight must know.

    >>> adds_one(nn.LayerNorm(3))
    False
    """
    weight = getattr(norm, "weight", None)
    if type(norm) in (nn.LayerNorm, nn.Linear) or not isinstance(weight, Tensor) or weight.ndim != 1:
        return False
    values = readable(norm, stored(norm, "weight"), "weight")
    found = _like(norm, values, optional(norm, "", "bias"))
    return found is not None and found.weight is not None and not torch.equal(found.weight, values)


def _like(module: nn.Module, values: Tensor | None, bias: Tensor | None) -> Norm | None:
    """The norm that gives the same as `module` does, on a large and on a small vector; None where there is none."""
    shape = getattr(module, "normalized_shape", (16,))
    dim = next((one.numel() for one in (values, bias) if one is not None), shape[-1])
    device = next((one.device for one in (values, bias) if one is not None), None)
    wave_D = (0.7 * torch.arange(dim, device=device, dtype=torch.float64)).sin() + 0.5
    probe_BND = torch.stack([wave_D, 1e-3 * wave_D])[None].to(torch.float32 if values is None else values.dtype)
    # As it is in numbers, without hooks and whatever else is called with it.
    bare = copy.copy(module)
    weights = [name for name, weight in module._parameters.items() if weight is not None]
    plain = {name: readable(module, stored(module, name), name) for name in weights}
    bare.__dict__ = {**vars(module), "_parameters": {**module._parameters, **plain}}
    try:
        with torch.no_grad():
            gave_BND = type(module).forward(bare, probe_BND)
    except Exception:  # it takes something else, so it is something else
        return None
    # torch.nn.RMSNorm without an eps takes the one of the numbers it is given; others have it in their code.
    said = [value for value in vars(module).values() if isinstance(value, float)]
    for eps in (*said, torch.finfo(probe_BND.dtype).eps, 1e-5, 1e-6, 1e-8, 1e-12):
        for kind in ("layer", "rms"):
            for weight in (values, *(() if values is None else (1.0 + values,))):
                norm = Norm(kind, weight, bias, eps)
                if gave_BND.shape == probe_BND.shape and torch.allclose(norm.apply(probe_BND), gave_BND, 1e-4, 1e-5):
                    return norm
    return None


def optional(block: nn.Module, path: str, name: str) -> Tensor | None:
    """The values of the weight `name` of the module at `path`; None where it has none.

    >>> optional(nn.Sequential(nn.Linear(3, 5, bias=False)), "0", "bias") is None
    True
    """
    module = part(block, path)
    return None if getattr(module, name, None) is None else readable(block, stored(module, name), path)


def weight_at(block: nn.Module, path: str) -> Tensor:
    """The values of the weight at `path`, which is one inside `block`.

    >>> weight_at(nn.Sequential(nn.LayerNorm(2)), "0.weight")
    tensor([1., 1.])
    """
    where, _, name = path.rpartition(".")
    module = part(block, where)
    if not isinstance(getattr(module, name, None), Tensor):
        raise refuse(block, f"a weight {name!r} at {where!r}", type(module).__name__)
    return readable(block, stored(module, name), path)


def declared(model: nn.Module, name: str) -> int:
    """What a model says of itself under `name`; it may be wrapped, so the outermost module that says so counts."""
    numbers = (getattr(module, name, None) for module in model.modules())
    return next((number for number in numbers if isinstance(number, int)), 0)


def _class_names(module: nn.Module) -> set[str]:
    """Of the module's class and its bases, because FSDP2 and users subclass."""
    return {base.__name__ for base in type(module).__mro__}
