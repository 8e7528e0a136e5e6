"""Which samples make up which batch: the same for any number of processes, known without going through the others."""

from __future__ import annotations

import torch
from torch import Tensor

from unsmooth import keyed
from unsmooth.errors import expected
from unsmooth.training.place import Place


class Order:
    """A fresh permutation of the samples every epoch; a batch that would be incomplete is left out.

    The permutation is kept on the device in a buffer that does not move, so that a captured step can read it.

    Args:
        samples: How many there are.
        share: How many a process takes at a time.
        seed: Of the permutations.
        place: Which process this is.
        repeats: How often each sample drawn stands in a batch; an epoch is as long and has fewer different samples.

    >>> order = Order(10, 4, seed=0, place=Place(torch.device("cpu")))
    >>> order.begin(0)
    >>> order.batches, sorted(torch.cat([order.take(torch.tensor(0)), order.take(torch.tensor(1))]).tolist())
    (2, [1, 2, 3, 4, 5, 6, 7, 8])
    """

    def __init__(self, samples: int, share: int, seed: int, place: Place, repeats: int = 1) -> None:
        self.samples, self.repeats = samples, repeats
        self.together = share * place.ranks
        if self.together % repeats:
            raise expected(f"a batch that {repeats} repeats divide", self.together, "another batch or repeats=1")
        self.batches = samples // self.together
        if not self.batches:
            hint = f"--set batch={max(1, samples)}"
            raise expected(f"at least one batch of {self.together} in the data", f"{samples} samples", hint)
        self._epoch = -1
        self._stream = keyed.stream(seed, "order")
        self._permutation = torch.zeros(samples, dtype=torch.int64, device=place.device)
        self._mine = mirrored_share(share, place).to(place.device)
        self.copy = self._mine % repeats
        """Which of its repeats each sample of a batch is."""

    def begin(self, epoch: int) -> None:
        """Shuffle for `epoch`, unless that was done."""
        if epoch == self._epoch:
            return
        self._epoch = epoch
        names = torch.arange(self.samples, device=self._permutation.device)
        # Two of 2³² keys may be equal: stable, so that their order is the same on every device.
        self._permutation.copy_(torch.argsort(keyed.keys(self._stream, epoch, names), stable=True))

    def take(self, batch: Tensor) -> Tensor:
        """This process's samples in batch number `batch` of the epoch (a tensor, so that a graph may count it)."""
        return self._permutation[(batch * self.together + self._mine) // self.repeats]


def mirrored_share(share: int, place: Place) -> Tensor:
    """Positions in the batch of all processes that this one takes, such that flipping them is flipping the whole batch.

    Mixup pairs each sample with its mirror image in the batch; so a process takes both.

    >>> [mirrored_share(4, Place(torch.device("cpu"), rank, 2)).tolist() for rank in (0, 1)]
    [[0, 1, 6, 7], [2, 3, 4, 5]]
    >>> mirrored_share(3, Place(torch.device("cpu"))).tolist()
    [0, 1, 2]
    """
    if place.ranks == 1:
        return torch.arange(share)
    if share % 2:
        raise expected(
            "an even share of the batch for each process", share, f"a batch of {2 * place.ranks} times a number"
        )
    front = torch.arange(share // 2) + place.rank * (share // 2)
    return torch.cat([front, (share * place.ranks - 1 - front).flip(0)])
