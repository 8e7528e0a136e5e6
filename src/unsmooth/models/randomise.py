"""The same architecture with fresh random weights: what depth does before anything is learnt."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from unsmooth.models.origin import origin_of, set_origin, unwrapped
from unsmooth.models.remedied import HOME, brought_by_edits, computed_weights, edits_of, is_remedied
from unsmooth.models.spread import is_spread

_GGUF_NOTE = (
    "A GGUF file does not hold its authors' initialisation: the random weights have transformers' default scale."
)


def with_random_weights(model: nn.Module, seed: int) -> nn.Module:
    """A freshly initialised copy of `model`, on the same device, in the same dtype, in eval mode.

    A transformers model is built anew from its configuration, so it gets the initialisation that its authors
    chose. Any other module is copied; then each part with a `reset_parameters` is reset by it, and parameters
    of parts that have none (a bare ``nn.Parameter`` such as a class token) get their own elements in random
    order, which keeps their scale. Buffers stay as they are. The caller's random state is not touched.

    Remedies stay, with the parameters they have: what they do is looked at, on weights that know nothing. Only one that
    stands in for weights (it has a `reset_parameters`) is drawn anew with them.

    Args:
        model: Any module; a DDP or torch.compile wrapper is taken off.
        seed: The same seed gives the same weights, on any device.
    """
    inner = unwrapped(model)
    with _Draws(seed):
        fresh = _rebuilt(inner) or _reset(copy.deepcopy(inner).cpu())
    _place_like(fresh, inner)
    origin = origin_of(inner)
    if origin is not None:
        name = f"{origin.id} (random weights)"
        notes = (_GGUF_NOTE,) if str(origin.path).endswith(".gguf") else ()
        set_origin(fresh, dataclasses.replace(origin, id=name, revision=None, path=None, notes=notes))
    return fresh.eval()


class _Draws(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """What this thread draws on the CPU comes from a generator of its own, and not from the one of all threads."""

    def __init__(self, seed: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.generator = torch.Generator().manual_seed(seed)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if torch.Tag.nondeterministic_seeded in func.tags and kwargs.get("generator") is None:
            taken = any(one.name == "generator" for one in func._schema.arguments)
            func = func if taken else func.overloadpacket.generator
            kwargs["generator"] = self.generator
        return func(*args, **kwargs)


@contextmanager
def private_randomness(seed: int) -> Iterator[None]:
    """Seed the CPU generator for a while, and put it back as it was: it is that of all threads.

    ``torch.manual_seed`` is not used, because it would seed the accelerators too and leave them so.
    """
    state = torch.default_generator.get_state()
    torch.default_generator.manual_seed(seed)
    try:
        yield
    finally:
        torch.default_generator.set_state(state)


def _rebuilt(model: nn.Module) -> nn.Module | None:
    """A transformers model made from its configuration; None where that would not be the same architecture."""
    if all(base.__name__ != "PreTrainedModel" for base in type(model).__mro__):
        return None
    build: Callable[..., nn.Module] = type(model)
    fresh = build(copy.deepcopy(model.config))
    if is_remedied(model):
        return _begun_anew(copy.deepcopy(model), fresh.state_dict())
    shapes = [{name: value.shape for name, value in m.named_parameters()} for m in (model, fresh)]
    return fresh if shapes[0] == shapes[1] else None


def _begun_anew(remedied: nn.Module, plain: dict[str, Tensor]) -> nn.Module | None:
    """A remedied model on the weights of a plain one, as if it had been applied to them; None where they do not fit."""
    try:
        remedied.load_state_dict(plain)  # each remedy makes of a plain checkpoint what it would make of such weights
    except RuntimeError:
        return None
    for module in list(remedied.modules()):
        for part in module.get_submodule(HOME).modules() if edits_of(module) else ():
            if callable(reset := getattr(part, "reset_parameters", None)):
                reset()
    return remedied


def _reset(model: nn.Module) -> nn.Module:
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    # Children first: a parent, such as nn.MultiheadAttention, knows better what its parts should start from.
    for module in reversed(list(model.modules())):
        reset = getattr(module, "reset_parameters", None) or getattr(module, "_reset_parameters", None)
        if callable(reset):
            reset()
    # What no reset has changed has none; constants, such as the ones of an untrained norm, survive a shuffle.
    ours = brought_by_edits(model)
    for name, parameter in model.named_parameters():
        if name not in ours and torch.equal(parameter.detach(), before[name]):
            _shuffle(parameter)
    if not is_remedied(model):
        return model
    plain = {key: value for key, value in model.state_dict().items() if key not in ours}
    for key, weight in computed_weights(model).items():
        plain[key] = torch.empty_like(weight)
        nn.init.kaiming_uniform_(plain[key], a=5**0.5)  # as nn.Linear starts
    return _begun_anew(model, plain) or model


def _shuffle(parameter: Tensor) -> None:
    with torch.no_grad():
        parameter.copy_(parameter.flatten()[torch.randperm(parameter.numel())].view_as(parameter))


def _place_like(fresh: nn.Module, model: nn.Module) -> None:
    """Give each tensor the device and dtype it has in `model`: a blanket cast would round rotary frequencies.

    A model that is spread over devices does not fit on one, so its copy stays on the CPU; so do floats that are
    quantised there, as floats.
    """
    there, spread = dict(model.named_parameters()) | dict(model.named_buffers()), is_spread(model)
    for name, tensor in (*fresh.named_parameters(), *fresh.named_buffers()):
        if name in there and there[name].is_floating_point() == tensor.is_floating_point():
            device = tensor.device if spread else there[name].device
            tensor.data = tensor.data.to(device=device, dtype=there[name].dtype)
