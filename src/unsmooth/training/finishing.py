"""The trained model as a folder that `unsmooth.load` and `unsmooth scan` take."""

from __future__ import annotations

import shutil

from torch import nn

from unsmooth.networks.saving import save_network
from unsmooth.remedies import applied, save
from unsmooth.training.folder import RunFolder
from unsmooth.training.step import Step
from unsmooth.training.task import Task


def write_final(model: nn.Module, task: Task, folder: RunFolder, engine: Step) -> None:
    """Weights, architecture, remedies and tokenizer; beside them the moving average where there is one."""
    _write(model, task, folder.final)
    if engine.average:
        with engine.averaged():
            _write(model, task, folder.path / "final-average")


def _write(model: nn.Module, task: Task, where: object) -> None:
    from pathlib import Path

    path = Path(str(where))
    shutil.rmtree(path, ignore_errors=True)
    model.eval()
    if applied(model):
        save(model, path)
    else:
        save_network(model, path)
    model.train()
    task.save_beside(path)
