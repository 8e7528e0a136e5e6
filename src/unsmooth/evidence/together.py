"""Training several runs where one may lose its numbers: that is an outcome, and the others go on without it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from unsmooth.training import Config, LossNotFiniteError, RunFolder, carry_on
from unsmooth.training.driving import Tell


def train_together(
    configs: Mapping[str, Config], out: Path, *, minutes: float | None = None, tell: Tell = lambda _: None
) -> list[RunFolder]:
    """Take runs to their end, as `carry_on` does: finished, stopped where the loss is no number any more, or paused.

    Args:
        configs: Name of a folder below `out` to what is trained in it.
        out: Folder of the runs.
        minutes: Save and stop after so many; call it again to go on.
        tell: Called with every `Progress`.
    """
    left, folders = dict(configs), {name: RunFolder(out / name, name) for name in configs}
    end = None if minutes is None else time.monotonic() + 60 * minutes
    while left:
        rest = None if end is None else max(0.0, (end - time.monotonic()) / 60)
        try:
            carry_on(left, out, minutes=rest, tell=tell)
            break
        except LossNotFiniteError:
            stopped = [name for name in left if folders[name].manifest().get("state") == "stopped"]
            if not stopped:
                raise
            left = {name: config for name, config in left.items() if name not in stopped}
    return list(folders.values())
