"""What made a result: commit, hardware, versions, when."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import torch

from unsmooth.scanning.manifest import describe_versions

COMMIT = "UNSMOOTH_COMMIT"
"""Environment variable with the commit, for machines that hold the code without its history."""


def made(device: torch.device) -> dict[str, Any]:
    """Everything but the time that it took."""
    return {
        **commit(),
        "hardware": hardware(device),
        "versions": describe_versions(),
        "when": datetime.now(UTC).strftime("%Y-%m-%d"),
    }


def hardware(device: torch.device) -> str:
    """The GPU's name, or the processor's kind and how many of them may be used."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"CPU ({platform.machine()}, {usable} cores)"


@cache
def commit() -> dict[str, Any]:
    """The commit of this code, and whether it was changed since; None where there is no history and nothing said."""
    if COMMIT in os.environ:
        said = os.environ[COMMIT]
        return {"commit": said.removesuffix("+"), "changed": said.endswith("+")}
    here = Path(__file__).resolve().parents[2]
    found = _git(here, "rev-parse", "HEAD")
    if not found or not (here.parent / "pyproject.toml").exists():
        return {"commit": None, "changed": None}
    return {"commit": found, "changed": bool(_git(here, "status", "--porcelain", "--", str(here)))}


def _git(folder: Path, *words: str) -> str:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *words], capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
