"""Where a run happens: its device, and which of how many processes this is."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor
from torch import distributed as dist

from unsmooth.models.spread import check_device


@dataclass(frozen=True)
class Place:
    """One process of a run.

    Args:
        device: Where its model lives.
        rank: Its number, from 0.
        ranks: How many there are.
    """

    device: torch.device
    rank: int = 0
    ranks: int = 1

    @property
    def first(self) -> bool:
        """Whether this process writes the files."""
        return self.rank == 0

    def mean(self, value: Tensor) -> Tensor:
        """The mean of `value` over all processes, in place."""
        if self.ranks > 1:
            dist.all_reduce(value)
            value /= self.ranks
        return value

    def lowest(self, value: Tensor) -> Tensor:
        """The lowest of all processes' `value`, in place."""
        if self.ranks > 1:
            dist.all_reduce(value, dist.ReduceOp.MIN)
        return value

    def anywhere(self, here: bool) -> bool:
        """Whether something is so on any process."""
        if self.ranks == 1:
            return here
        return bool(self.lowest(torch.tensor(0 if here else 1, device=self.device)) == 0)

    def agree(self, words: str | None) -> str | None:
        """What the first process that has something to say says, on each of them."""
        if self.ranks == 1:
            return words
        said: list[str | None] = [None] * self.ranks
        dist.all_gather_object(said, words)
        return next((one for one in said if one is not None), None)

    def wait(self) -> None:
        """Until every process is here."""
        if self.ranks > 1:
            dist.barrier()


@contextmanager
def take_place(device: str = "auto") -> Iterator[Place]:
    """The place of this process, with a process group under ``torchrun`` that is left again at the end."""
    if "RANK" not in os.environ or dist.is_initialized():
        ranks = dist.get_world_size() if dist.is_initialized() else 1
        yield Place(_device(device, 0), dist.get_rank() if ranks > 1 else 0, ranks)
        return
    local = int(os.environ.get("LOCAL_RANK", "0"))
    where = _device(device, local)
    if where.type == "cuda":
        torch.cuda.set_device(where)
    dist.init_process_group("nccl" if where.type == "cuda" else "gloo")
    try:
        yield Place(where, dist.get_rank(), dist.get_world_size())
    finally:
        dist.destroy_process_group()


def _device(name: str, local: int) -> torch.device:
    if name == "auto":
        name = f"cuda:{local}" if torch.cuda.is_available() else "cpu"
    return check_device(name, "--set device=cpu")


def is_first_process() -> bool:
    """Whether this process is the one that talks, as ``torchrun`` numbers them."""
    return int(os.environ.get("RANK", "0")) == 0
