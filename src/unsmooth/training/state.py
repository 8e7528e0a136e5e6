"""The state of a run: as named tensors, put back in place; the model over processes, at rest, and as it is trained."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate
from torch.nn.parallel import DistributedDataParallel

from unsmooth.errors import expected
from unsmooth.files import sync_tree, whole_folder
from unsmooth.models import find_anatomy
from unsmooth.networks.saving import save_network
from unsmooth.remedies import applied, save
from unsmooth.scanning.undisturbed import tensors_kept
from unsmooth.training.config import Config
from unsmooth.training.folder import RunFolder
from unsmooth.training.place import Place
from unsmooth.training.step import Step
from unsmooth.training.task import Task

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


def wrapped(model: nn.Module, config: Config, place: Place) -> nn.Module:
    """`model` as this process is to train it; the model itself where there is only one process."""
    if place.ranks == 1:
        return model
    if config.engine.sharding == "shard":
        for block in find_anatomy(model).blocks.values():
            fully_shard(block)
        fully_shard(model)
        return model
    devices = [place.device] if place.device.type == "cuda" else None
    return DistributedDataParallel(model, device_ids=devices)


class ModelAtRest:
    """Gives the model of a run, or its moving average, as a plain module.

    Args:
        engine: The run.
        build: Makes the model anew, with its remedies, on the CPU: where the model is sharded, every process puts the
            shards together in such a twin, which it keeps for the next time.
    """

    def __init__(self, engine: Step, build: Callable[[], nn.Module]) -> None:
        self._engine, self._build = engine, build
        self._twin: nn.Module | None = None

    @contextmanager
    def __call__(self, *, average: bool = False) -> Iterator[nn.Module]:
        """Every process has to call this, and has a model that it may run by itself."""
        engine, model = self._engine, unwrapped(self._engine.model)
        if not engine.sharded:
            # Some remedies bring weights into their exact form for evaluation; looking at a run must not change it.
            with tensors_kept(model), engine.averaged() if average else nullcontext():
                try:
                    yield model.eval()
                finally:
                    model.train()
            return
        with engine.averaged() if average else nullcontext():
            state = whole_state(model)
        twin = self._twin = self._twin or self._build()
        twin.load_state_dict(state)
        yield twin.to(engine.place.device).eval()
        twin.cpu()


def whole_state(model: nn.Module) -> dict[str, Tensor]:
    """The model's tensors, each whole and on the CPU; every process has to call this."""
    return {
        name: (value.full_tensor() if isinstance(value, DTensor) else value).detach().cpu()
        for name, value in model.state_dict().items()
        if isinstance(value, Tensor)
    }


def write_final(engine: Step, rest: ModelAtRest, folder: RunFolder) -> None:
    """Weights, architecture, remedies and tokenizer; beside them the moving average where there is one.

    Every process calls this; the first writes.
    """
    for where, average in (
        ((folder.final, False), (folder.average, True)) if engine.average else ((folder.final, False),)
    ):
        with rest(average=average) as model:
            if engine.place.first:
                _write(model, engine.task, where)


def _write(model: nn.Module, task: Task, where: Path) -> None:
    # One that is there was not finished, or the run would not be here.
    shutil.rmtree(where, ignore_errors=True)
    with whole_folder(where) as draft:
        if applied(model):
            save(model, draft)
        else:
            save_network(model, draft)
        task.save_beside(draft)
        sync_tree(draft)
