"""Under torchrun, several processes run one command: they share the work, and the first one speaks."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def process_group(device: str | None) -> Iterator[tuple[int, str | None]]:
    """Yield this process's rank and its device; open and close the process group where torchrun started us."""
    import torch
    import torch.distributed as dist

    local = int(os.environ.get("LOCAL_RANK", 0))
    if device is None and torch.cuda.is_available():
        device = f"cuda:{local}"
    if int(os.environ.get("WORLD_SIZE", 1)) < 2:
        yield 0, device
        return
    on_gpu = device is not None and device.startswith("cuda")
    dist.init_process_group("nccl" if on_gpu else "gloo")
    try:
        yield dist.get_rank(), device
    finally:
        dist.destroy_process_group()
