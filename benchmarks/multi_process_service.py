"""NVIDIA's Multi-Process Service: kernels of several processes on one GPU beside each other, not in turns."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from unsmooth.errors import expected

CONTROL = "nvidia-cuda-mps-control"


@contextmanager
def multi_process_service() -> Iterator[None]:
    """NVIDIA's Multi-Process Service of our own, over when this is over."""
    if shutil.which(CONTROL) is None:
        raise expected(f"{CONTROL} for --mps", "no such command", "the same without --mps")
    with tempfile.TemporaryDirectory() as folder:  # its sockets want short paths
        os.environ.update(CUDA_MPS_PIPE_DIRECTORY=folder, CUDA_MPS_LOG_DIRECTORY=folder)
        subprocess.run([CONTROL, "-d"], check=True)
        try:
            yield
        finally:
            subprocess.run([CONTROL], input=b"quit\n", check=False)
