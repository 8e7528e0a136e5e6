"""TensorBoard's event files in FOLDER/events."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from unsmooth.errors import expected
from unsmooth.monitor.reading import Reading
from unsmooth.monitor.sinks.sink import SINKS, Card, Sink, scalars

if TYPE_CHECKING:
    from unsmooth.training.folder import Events


class TensorBoard(Sink):
    """A scalar for every metric, site and layer."""

    def __init__(self) -> None:
        self._events: Events | None = None

    def open(self, card: Card) -> str:
        """Needs the package tensorboard."""
        from unsmooth.training.folder import Events

        if find_spec("tensorboard") is None:
            raise expected("the package tensorboard", "an environment without it", "pip install tensorboard")
        self._events = Events(card.folder / "events", after=card.step)
        return ""

    def write(self, reading: Reading) -> None:
        """Scalars of one step."""
        if self._events is not None:
            self._events.add(reading.step, **scalars(reading))

    def close(self, state: str) -> None:
        """Write what is still held back."""
        if self._events is not None:
            self._events.close()


SINKS.add("tensorboard", TensorBoard)
