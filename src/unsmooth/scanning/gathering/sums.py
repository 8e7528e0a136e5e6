"""Running sums of tensors by name, which is all that most gatherings keep."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Generic, TypeVar

import torch
from torch import Tensor

K = TypeVar("K", bound=Hashable)


class Sums(Generic[K]):
    """Counts and float64 sums on the CPU by key, with those of the current batch put aside until it is over.

    >>> sums = Sums[str]()
    >>> sums.put("a", 2, torch.tensor([3.0])); sums.end(); sums.put("a", 1, torch.tensor([1.0])); sums.begin()
    >>> sums["a"]
    (2.0, tensor([3.], dtype=torch.float64))
    """

    def __init__(self) -> None:
        self._kept: dict[K, tuple[float, Tensor]] = {}
        self._aside: list[tuple[K, Tensor, Tensor]] = []

    def begin(self) -> None:
        """Forget what was put aside."""
        self._aside.clear()

    def put(self, key: K, count: Tensor | float, total: Tensor) -> None:
        """Put aside: it stays where it is computed, so that a device is not waited for."""
        self._aside.append((key, torch.as_tensor(count), total))

    def end(self) -> None:
        """Add what was put aside."""
        for key, count, total in self._aside:
            self._add(key, float(count), total.double().cpu())
        self._aside.clear()

    def _add(self, key: K, count: float, total: Tensor) -> None:
        before = self._kept.get(key)
        self._kept[key] = (count, total) if before is None else (before[0] + count, before[1] + total)

    def __getitem__(self, key: K) -> tuple[float, Tensor]:
        return self._kept[key]

    def __contains__(self, key: object) -> bool:
        return key in self._kept

    def __iter__(self) -> Iterator[K]:
        return iter(self._kept)

    def state(self) -> dict[K, tuple[float, Tensor]]:
        """The sums."""
        return dict(self._kept)

    def merge(self, states: Sequence[dict[K, tuple[float, Tensor]]]) -> None:
        """Become the sum of all states."""
        self._kept = {}
        for state in states:
            for key, (count, total) in state.items():
                self._add(key, count, total)
