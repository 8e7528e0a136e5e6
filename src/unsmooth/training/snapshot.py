"""Everything that the next step depends on, as named tensors, and putting it back where it was, in place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from unsmooth.errors import expected
from unsmooth.training.step import Step

State = dict[str, Any]


def snapshot(step: Step, *, copied: bool = False) -> State:
    """The run as nested dicts of tensors: weights, moments, average, clocks, the task's own, torch's generators.

    Args:
        step: The run.
        copied: Whether the tensors are copies, which later steps do not change.
    """
    model = unwrapped(step.model)
    names = {id(one): name for name, one in model.named_parameters()}
    moments = {names[id(step.parameters[index])]: dict(kept) for index, kept in step.moments().items()}
    average = (
        {names[id(one)]: kept for one, kept in zip(step.parameters, step.average, strict=True)} if step.average else {}
    )
    state: State = {
        "model": {name: value for name, value in model.state_dict().items() if isinstance(value, Tensor)},
        "moments": moments,
        "average": average,
        "clocks": step.clocks(),
        "task": step.task.state(),
        "generators": generators(step.place.device),
    }
    return _copied(state) if copied else state


def restore(step: Step, state: Mapping[str, Any]) -> None:
    """Write `state` into the tensors of the run, which stay where they are: a captured graph goes on with them."""
    mine = snapshot(step)
    missing = set(mine["model"]) ^ set(state["model"])
    if missing:
        raise expected(
            "a checkpoint of this model", f"other tensors ({', '.join(sorted(missing)[:3])})", "its own config"
        )
    with torch.no_grad():
        for part in ("model", "average", "clocks", "task"):
            for name, value in mine[part].items():
                value.copy_(state[part][name])
        _restore_moments(step, state["moments"])
    set_generators(state["generators"], step.place.device)
    step.optimiser.zero_grad(set_to_none=not step.adds_up)


def _restore_moments(step: Step, saved: Mapping[str, Mapping[str, Tensor]]) -> None:
    names = {name: one for name, one in unwrapped(step.model).named_parameters()}
    for name, parameter in names.items():
        kept = step.optimiser.state.get(parameter)
        if name not in saved:
            # Before its first step an optimiser has no moments; a captured one has them, and they start at zero.
            for value in (kept or {}).values():
                value.zero_()
            continue
        if not kept:
            step.optimiser.state[parameter] = {
                key: _placed(value, key, parameter) for key, value in saved[name].items()
            }
            continue
        for key, value in kept.items():
            value.copy_(saved[name][key])


def _placed(value: Tensor, key: str, parameter: Tensor) -> Tensor:
    return value.to(parameter.device, torch.float32 if key == "step" else parameter.dtype).clone()


def unwrapped(model: nn.Module) -> nn.Module:
    """The model inside DistributedDataParallel."""
    return model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model


def generators(device: torch.device) -> dict[str, Tensor]:
    """States of torch's own generators, which remedies or modules of others may draw from."""
    found = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        found["cuda"] = torch.cuda.get_rng_state(device)
    return found


def set_generators(states: Mapping[str, Tensor], device: torch.device) -> None:
    """The reverse of `generators`."""
    torch.set_rng_state(states["cpu"].cpu())
    if device.type == "cuda" and "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"].cpu(), device)


def _copied(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().clone()
    return {key: _copied(item) for key, item in value.items()}
