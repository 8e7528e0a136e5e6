"""The trained model as a folder that `unsmooth.load` and `unsmooth scan` take."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from torch import nn

from unsmooth.files import whole_folder
from unsmooth.networks.saving import save_network
from unsmooth.remedies import applied, save
from unsmooth.training.durable import sync_tree
from unsmooth.training.folder import RunFolder
from unsmooth.training.snapshot import unwrapped
from unsmooth.training.step import Step
from unsmooth.training.wrapping import whole_state


def write_final(engine: Step, folder: RunFolder, build: Callable[[], nn.Module]) -> None:
    """Weights, architecture, remedies and tokenizer; beside them the moving average where there is one.

    Every process calls this; the first writes.

    Args:
        engine: The run.
        folder: Its files.
        build: Makes the model anew, with its remedies, on the CPU: shards are put together in it.
    """
    _write(engine, folder.final, build)
    if engine.average:
        with engine.averaged():
            _write(engine, folder.average, build)


def _write(engine: Step, where: Path, build: Callable[[], nn.Module]) -> None:
    model = unwrapped(engine.model)
    if engine.sharded:
        state = whole_state(model)
        if engine.place.first:
            model = build()
            model.load_state_dict(state)
    if not engine.place.first:
        return
    # One that is there was not finished, or the run would not be here.
    shutil.rmtree(where, ignore_errors=True)
    model.eval()
    with whole_folder(where) as draft:
        if applied(model):
            save(model, draft)
        else:
            save_network(model, draft)
        engine.task.save_beside(draft)
        sync_tree(draft)
    model.train()
