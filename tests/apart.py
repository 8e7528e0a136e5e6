"""Tests that need packages which are kept apart from the default environment, in a process that has them on its path.

`make apart` puts them there. Where they are not, and not installed either, such tests skip.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[1]
# Of one process that runs many tests, on a busy machine; `timeout` of the test that starts it is longer.
PATIENCE = 840


def run_checks(group: str, package: str, file: str) -> None:
    """Run the tests of `file` in a process that can import the packages of `group`, `package` among them."""
    folder = ROOT / ".apart" / group
    is_apart = (folder / "installed").is_file()
    if not is_apart and importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is neither installed nor in .apart/{group}: `make apart` puts it there")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", "--timeout=600", file]
    if is_apart:
        environment["PYTHONPATH"] = os.pathsep.join([str(folder), environment.get("PYTHONPATH", "")]).rstrip(os.pathsep)
        words[3:3] = ["-p", "tests.apart"]
    done = subprocess.run(
        words, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    if done.returncode:
        pytest.fail(f"{file} in a process with {package}:\n{done.stdout[-6000:]}\n{done.stderr[-2000:]}", pytrace=False)


def pytest_configure(config: pytest.Config) -> None:
    """As a plugin of such a process: torchvision's usual build looks for these two where a CPU torch has none."""
    if torch.version.cuda is None:
        library = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        config.stash[pytest.StashKey[torch.library.Library]()] = library
