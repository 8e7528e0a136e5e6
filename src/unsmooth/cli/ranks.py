"""Under torchrun, several processes run one command: they share the work, and the first one speaks."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager


def own_device(device: str | None) -> str | None:
    """The one that was asked for, else this process's GPU, else None: where the model is."""
    import torch

    if device is None and torch.cuda.is_available():
        return f"cuda:{int(os.environ.get('LOCAL_RANK', 0))}"
    return device


@contextmanager
def process_group(device: str | None) -> Iterator[int]:
    """Yield this process's rank; open and close the process group where torchrun started us."""
    import torch.distributed as dist

    device = own_device(device)
    if int(os.environ.get("WORLD_SIZE", 1)) < 2:
        yield 0
        return
    on_gpu = device is not None and device.startswith("cuda")
    dist.init_process_group("nccl" if on_gpu else "gloo")
    try:
        yield dist.get_rank()
    finally:
        dist.destroy_process_group()
