"""Under torchrun, several processes run one command: they share the work, and the first one speaks."""

from __future__ import annotations

import atexit
import datetime
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

TIMEOUT = datetime.timedelta(minutes=10)
"""How long a process waits for another one, which may have to explain a model first; torch waits for 30 on a CPU."""


def own_device(device: str | None) -> str | None:
    """The one that was asked for, else this process's GPU, else None: where the model is."""
    import torch

    from unsmooth.models.spread import check_device

    if device is not None:
        check_device(device, "--device cpu")
    elif torch.cuda.is_available():
        return f"cuda:{int(os.environ.get('LOCAL_RANK', 0))}"
    return device


class Ending:
    """How one of several processes leaves: after every other exit function, and before the interpreter is undone.

    Gloo's threads let go of a collective's tensors after they told that it is done, and sharded weights keep these
    threads alive past the group's end. One that meets an interpreter on its way out aborts the process
    (pytorch/pytorch#190489), and torchrun then ends the others, the one that still writes files among them.

    To be made before anything else registers an exit function: they run in the order of a stack.
    """

    def __init__(self) -> None:
        self.code = 1
        if _several_processes():
            atexit.register(self._leave)

    def exit(self, code: int) -> NoReturn:
        """End the process with `code`, in the usual way up to its last exit function."""
        self.code = code
        sys.exit(code)

    def _leave(self) -> None:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:  # also where nobody reads any more
            os._exit(self.code)


def _several_processes() -> bool:
    return int(os.environ.get("WORLD_SIZE", 1)) > 1


@contextmanager
def process_group(device: str | None) -> Iterator[int]:
    """Yield this process's rank; open and close the process group where torchrun started us."""
    import torch.distributed as dist

    device = own_device(device)
    if not _several_processes():
        yield 0
        return
    on_gpu = device is not None and device.startswith("cuda")
    dist.init_process_group("nccl" if on_gpu else "gloo", timeout=TIMEOUT)
    try:
        yield dist.get_rank()
    finally:
        dist.destroy_process_group()
