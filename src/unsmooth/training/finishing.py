"""The trained model as a folder that `unsmooth.load` and `unsmooth scan` take."""

from __future__ import annotations

import shutil
from pathlib import Path

from torch import nn

from unsmooth.files import whole_folder
from unsmooth.networks.saving import save_network
from unsmooth.remedies import applied, save
from unsmooth.training.durable import sync_tree
from unsmooth.training.folder import RunFolder
from unsmooth.training.resting import Rest
from unsmooth.training.step import Step
from unsmooth.training.task import Task


def write_final(engine: Step, rest: Rest, folder: RunFolder) -> None:
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
