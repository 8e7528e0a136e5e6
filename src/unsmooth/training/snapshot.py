"""Everything that the next step depends on, as named tensors, and putting it back where it was, in place."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate

from unsmooth.errors import expected
from unsmooth.training.step import Step

State = dict[str, Tensor]


def snapshot(step: Step, *, copied: bool = False) -> State:
    """The run as tensors by name: weights, moments, average, clocks, what the task remembers, torch's generators.

    Names begin with what they belong to: ``model/``, ``moments/``, ``average/``, ``clocks/``, ``task/``, ``own/RANK/``.
    They are the same for any number of processes; shards are named like the whole. Every process has to call this.

    Args:
        step: The run.
        copied: Whether the tensors are copies, which later steps do not change.
    """
    model = unwrapped(step.model)
    names = {id(one): name for name, one in model.named_parameters()}
    state = {f"model/{name}": value for name, value in model.state_dict().items() if isinstance(value, Tensor)}
    for index, kept in step.moments().items():
        name = names[id(step.parameters[index])]
        state |= {f"moments/{name}/{key}": value for key, value in kept.items()}
    for one, value in zip(step.parameters, step.average, strict=bool(step.average)):
        state[f"average/{names[id(one)]}"] = value
    state |= {f"clocks/{name}": value for name, value in step.clocks().items()}
    state |= {f"task/{name}": value for name, value in step.task.state().items()}
    # Generators differ between processes, if anybody draws from them.
    state |= {f"{own_prefix(step)}{name}": value for name, value in generators(step.place.device).items()}
    return {name: value.detach().clone() if copied else value.detach() for name, value in state.items()}


def own_prefix(step: Step) -> str:
    """How the names begin of what belongs to this process alone."""
    return f"own/{step.place.rank}/generators/"


def restore(step: Step, state: Mapping[str, Tensor]) -> None:
    """Write `state` into the tensors of the run, which stay where they are: a captured graph goes on with them."""
    mine = places(step)
    check_fits(mine, state)
    with torch.no_grad():
        for name, place in mine.items():
            if name in state:
                put(place, state[name])
            elif name.startswith("moments/"):
                # Before its first step an optimiser has no moments: they start at zero.
                put(place, torch.zeros(place.shape, dtype=place.dtype))
    settle(step, {name: value for name, value in state.items() if name.startswith(own_prefix(step))})


def places(step: Step) -> State:
    """The tensors of the run that a state is written into, with moments also where no step was taken yet."""
    for parameter in step.parameters:
        if not step.optimiser.state.get(parameter):
            where = torch.device("cpu") if step.sharded else parameter.device
            step.optimiser.state[parameter] = {
                "step": torch.zeros((), dtype=torch.float32, device=where),
                "exp_avg": torch.zeros_like(parameter, memory_format=torch.preserve_format),
                "exp_avg_sq": torch.zeros_like(parameter, memory_format=torch.preserve_format),
            }
    return snapshot(step)


def settle(step: Step, own: Mapping[str, Tensor]) -> None:
    """What is left to do once all tensors are in their places."""
    set_generators({name.removeprefix(own_prefix(step)): value for name, value in own.items()}, step.place.device)
    step.optimiser.zero_grad(set_to_none=not step.adds_up)


def check_fits(mine: Mapping[str, Tensor], saved: Mapping[str, Tensor]) -> None:
    """Refuse the state of another model or task, before anything is overwritten."""
    needed = {name for name in mine if not name.startswith(("moments/", "own/"))}
    known = {name for name in saved if not name.startswith("own/")}
    lost = sorted(name for name in needed if name not in saved)
    strange = lost + sorted(known - set(mine))
    if not strange:
        strange = [name for name in needed if mine[name].shape != saved[name].shape]
    if strange:
        raise expected("a checkpoint of this model", f"other tensors ({', '.join(strange[:3])})", "its own config")


def put(place: Tensor, value: Tensor) -> None:
    """Copy `value`, whole or sharded, into `place`, whole or sharded."""
    if not isinstance(place, DTensor):
        place.copy_(value)
        return
    if not isinstance(value, DTensor):
        mesh = place.device_mesh
        whole = DTensor.from_local(value.to(place.device), mesh, [Replicate()] * mesh.ndim, run_check=False)
        value = whole.redistribute(placements=place.placements)  # every process has the whole: nothing is sent
    place.to_local().copy_(value.to_local())


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
    """The reverse of `generators`; those that are not named stay as they are."""
    if "cpu" in states:
        torch.set_rng_state(states["cpu"].cpu())
    if device.type == "cuda" and "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"].cpu(), device)
