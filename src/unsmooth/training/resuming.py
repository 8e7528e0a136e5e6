"""A run to its checkpoint and back: in one file, or in shards where the model is sharded."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch import distributed as dist

from unsmooth.errors import UnsmoothError
from unsmooth.training.checkpoint import Checkpoint, Checkpoints
from unsmooth.training.shards import load_shards, save_shards
from unsmooth.training.snapshot import State, own_prefix, restore, snapshot
from unsmooth.training.step import Step


def save_checkpoint(step: Step, checkpoints: Checkpoints, number: int, about: dict[str, Any]) -> None:
    """Write the checkpoint of step `number`; every process calls this, and all of them fail where one does.

    Args:
        step: The run.
        checkpoints: Where to.
        number: Steps that were taken.
        about: Plain values to keep with it.
    """
    said = ""
    try:
        if step.sharded:
            save_shards(step, checkpoints, number, about)
        else:
            state = _with_others(step, snapshot(step))
            if step.place.first:
                checkpoints.save(number, {"state": state, "about": about})
    except UnsmoothError as error:
        # Its words, not the error: that would hold on to this frame, and to the process group with it.
        said = str(error)
    if (words := step.place.agree(said or None)) is not None:
        raise UnsmoothError(words)


def load_checkpoint(step: Step, found: Checkpoint) -> dict[str, Any]:
    """Write a checkpoint into the run; returns what was kept with it."""
    if found.sharded:
        return load_shards(step, found.path)
    content = found.read()
    restore(step, content["state"])
    about: dict[str, Any] = content["about"]
    return about


def _with_others(step: Step, state: State) -> State:
    """What belongs to other processes alone is added on the first."""
    place = step.place
    if place.ranks == 1:
        return state
    own = {name: value.cpu() for name, value in state.items() if name.startswith(own_prefix(step))}
    gathered: list[dict[str, Tensor]] | None = [{} for _ in range(place.ranks)] if place.first else None
    dist.gather_object(own, gathered)
    return {**state, **{name: value for one in gathered or () for name, value in one.items()}}
