"""How a monitor comes to its numbers: by a fixed batch, or by the training passes themselves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from torch import Tensor, nn

from unsmooth.errors import expected
from unsmooth.monitor.batch import FirstBatch, kept
from unsmooth.monitor.probe import Probe
from unsmooth.scanning.collect import Collector
from unsmooth.scanning.data import RawBatch, first_of_pair


class Look(Protocol):
    """One way to look at a model in training."""

    @property
    def at_once(self) -> bool:
        """Whether it can be done now, whatever the step."""

    def expect(self, due: bool) -> None:
        """The next step begins; `due` says whether it will be looked at."""

    def read(self) -> list[Collector]:
        """Look."""

    def close(self) -> None:
        """Take every hook away."""


class FixedBatch:
    """Looks at one batch, again and again.

    Args:
        probe: Knows the model and what to measure.
        model: The model as it is called.
        given: A batch; "first" takes the first that the model is called with in training.
        sequences: How many of the first batch's sequences; None for a share of them.
    """

    def __init__(self, probe: Probe, model: nn.Module, given: Any, sequences: int | None) -> None:
        if isinstance(given, str) and given != "first":
            raise expected('a batch, "first" or None as probe', repr(given), 'probe="first"')
        self._probe, self._sequences = probe, sequences
        self._batch = None if isinstance(given, str) else kept(first_of_pair(given))
        if self._batch is not None:
            probe.check(self._batch)
        self._first = FirstBatch(model) if isinstance(given, str) else None
        self.offered: Any = None

    @property
    def at_once(self) -> bool:
        """With a batch, yes; before the first step one may have to be waited for."""
        return self._batch is not None

    def expect(self, due: bool) -> None:
        """Nothing to do."""

    def read(self) -> list[Collector]:
        """One pass."""
        if self._batch is None:
            self._batch = self._probe.prepared(self._found(), self._sequences)
        return self._probe(self._batch)

    def _found(self) -> RawBatch:
        assert self._first is not None
        if self._first.seen is not None:
            return self._first.seen
        if self.offered is not None:
            self._first.close()
            offered = self.offered() if callable(self.offered) else self.offered
            return kept(first_of_pair(offered))
        # The hook stays: a call may come before the next look.
        self._first.look_at_call()
        raise self._first.problem or expected(
            "the model to be called in training",
            "no call that was seen, as where torch.compile(model) is called in its place",
            "Monitor(what torch.compile gave), or probe=batch",
        )

    def close(self) -> None:
        """Take the hook away that waits for the first batch, and give memory free."""
        self._probe.close()
        if self._first is not None:
            self._first.close()


Offer = RawBatch | Callable[[], Any] | tuple[Any, ...] | list[Tensor]
