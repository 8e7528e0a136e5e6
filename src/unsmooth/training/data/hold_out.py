"""Training samples that are not learned from and stand for the test set: to choose by, without having looked at it."""

from __future__ import annotations

import torch
from torch import Tensor

from unsmooth import keyed
from unsmooth.errors import UnsmoothError, expected


class HoldOutError(UnsmoothError):
    """There is nothing to hold out, or nothing would be left to learn from."""


def split_by_class(labels: Tensor, share: float) -> tuple[Tensor, Tensor]:
    """Places to learn from and places to hold out, both in order: `share` of each class, rounded.

    Which ones is a hash of their places alone: every run holds the same ones out, whatever its seed, and those of a
    smaller share are among those of a larger one.

    Args:
        labels: (samples,) int64, from 0 on.
        share: Above 0 and below 1.

    >>> learned, held = split_by_class(torch.tensor([0, 1, 0, 1, 0, 1, 0, 1]), 0.25)
    >>> learned.tolist(), held.tolist()
    ([0, 1, 3, 4, 6, 7], [2, 5])
    """
    counts = labels.bincount()
    taken = (share * counts + 0.5).floor().long()
    wanting = (counts > 0) & ((taken == 0) | (taken == counts))
    if wanting.any():
        found = int(wanting.long().argmax())
        samples = f"{int(counts[found])} of class {found}"
        missing = "none of them to evaluate on" if taken[found] == 0 else "none of them to learn from"
        raise nothing_left(f"samples of each class on both sides of a hold-out of {share:g}", f"{samples}, {missing}")
    names = keyed.keys(keyed.stream(0, "hold out"), torch.arange(len(labels)))
    shuffled = names.argsort(stable=True)
    by_class = shuffled[labels[shuffled].argsort(stable=True)]
    turn = torch.cat([torch.arange(count) for count in counts.tolist()])
    is_held = torch.zeros(len(labels), dtype=torch.bool)
    is_held[by_class] = turn < taken[labels[by_class]]
    return is_held.logical_not().nonzero().flatten(), is_held.nonzero().flatten()


def nothing_left(what: str, got: str) -> HoldOutError:
    """For a share that fits no data; the hint names no option, as several commands have one."""
    return HoldOutError(str(expected(what, got, "another share, more samples, or a hold-out of 0: the test set")))
