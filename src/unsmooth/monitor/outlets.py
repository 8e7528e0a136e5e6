"""All sinks of a monitor: what one of them cannot do is told once, and the others go on."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from unsmooth.monitor.reading import Reading
from unsmooth.monitor.sinks import Card, Sink
from unsmooth.monitor.telling import Teller, one_line
from unsmooth.scanning.ranks import world
from unsmooth.scanning.undisturbed import random_kept

# Failures one after another after which a sink is left out.
_PATIENCE = 3


class Outlets:
    """Hands everything on to every sink; in the first process only.

    Args:
        sinks: Where to write.
        teller: Told of what goes wrong.
    """

    def __init__(self, sinks: Sequence[Sink], teller: Teller) -> None:
        self._given = list(sinks)
        self._failures: dict[int, int] = {}
        self._sinks: list[Sink] = []
        self._teller, self._step = teller, 0

    def begin(self, card: Card) -> None:
        """Open them."""
        self._sinks = list(self._given) if world()[0] == 0 else []
        self._step = card.step

        def open_one(sink: Sink) -> None:
            if said := sink.open(card):
                self._teller.say(said)

        self._each(open_one, patience=1)
        self._teller.also = lambda text: self.tell(self._step, "note", text)

    def write(self, reading: Reading) -> None:
        """Write a reading."""
        self._step = reading.step

        def write_one(sink: Sink) -> None:
            sink.write(reading)
            self._failures[id(sink)] = 0

        self._each(write_one)

    def tell(self, step: int, kind: str, text: str) -> None:
        """Write an alarm or a note."""
        self._each(lambda sink: sink.tell(step, kind, text))

    def close(self, state: str) -> None:
        """Close them."""
        self._teller.also = lambda text: None
        self._each(lambda sink: sink.close(state))
        self._sinks = []

    def _each(self, work: Callable[[Sink], None], patience: int = _PATIENCE) -> None:
        # A library that draws random numbers for a name must not take them from the training.
        with random_kept(torch.device("cpu")):
            for sink in list(self._sinks):
                try:
                    work(sink)
                except Exception as error:
                    self._fail(sink, error, patience)

    def _fail(self, sink: Sink, error: Exception, patience: int) -> None:
        name = type(sink).__name__
        count = self._failures[id(sink)] = self._failures.get(id(sink), 0) + 1
        if count >= patience and sink in self._sinks:
            self._sinks.remove(sink)
        left = "" if sink in self._sinks else " and is left out"
        self._teller.say(f"{name} could not write{left}, the training goes on. {one_line(error)}")
