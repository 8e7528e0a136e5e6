"""Checkpoints that are there whole or not at all, and are known to be whole when read."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from unsmooth.errors import UnsmoothError, expected
from unsmooth.files import write_whole

_NAME = re.compile(r"step-(\d{8})\.pt")


class Checkpoints:
    """The newest checkpoints of a run, in a folder of their own.

    Each is one file, written beside its place, flushed to disk and moved there; its name in `index.json` comes with a
    SHA-256, so that a file which the disk garbled is passed over for the one before.

    Args:
        folder: Where they are.
        keep: How many of the newest stay.
    """

    def __init__(self, folder: Path, keep: int = 2) -> None:
        self.folder, self.keep = folder, keep

    def save(self, step: int, state: Mapping[str, Any]) -> Path:
        """Write `state` as the checkpoint of `step`, then let the oldest go."""
        buffer = io.BytesIO()
        torch.save(dict(state), buffer)
        content = buffer.getvalue()
        path = self.folder / f"step-{step:08d}.pt"
        digests = self._digests()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            _check_space(self.folder, len(content))
            write_whole(path, content)
            write_whole(
                self.folder / "index.json", json.dumps({**digests, path.name: hashlib.sha256(content).hexdigest()})
            )
        except (OSError, UnsmoothError) as error:
            hint = f"freeing {len(content) / 2**20:,.0f} MiB, then `unsmooth train --resume`; earlier checkpoints are whole"
            raise expected(f"room to save step {step} in {self.folder}", _reason(error), hint) from None
        for old in self.names()[: -self.keep]:
            (self.folder / old).unlink(missing_ok=True)
        return path

    def latest(self) -> tuple[int, dict[str, Any]] | None:
        """The newest whole checkpoint with its step; None where there is none yet."""
        digests = self._digests()
        for name in reversed(self.names()):
            content = (self.folder / name).read_bytes()
            if digests.get(name) in (None, hashlib.sha256(content).hexdigest()):
                match = _NAME.fullmatch(name)
                assert match is not None
                return int(match[1]), torch.load(io.BytesIO(content), weights_only=True, map_location="cpu")
        return None

    def names(self) -> list[str]:
        """File names, oldest first."""
        return sorted(path.name for path in self.folder.glob("step-*.pt") if _NAME.fullmatch(path.name))

    def _digests(self) -> dict[str, str]:
        try:
            known = json.loads((self.folder / "index.json").read_text())
        except (OSError, ValueError):
            return {}
        return {name: digest for name, digest in known.items() if (self.folder / name).exists()}


def _check_space(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise OSError(28, f"{os.strerror(28)} ({free / 2**20:,.0f} MiB free, {needed / 2**20:,.0f} needed)")


def _reason(error: Exception) -> str:
    return error.strerror or type(error).__name__ if isinstance(error, OSError) else str(error)
