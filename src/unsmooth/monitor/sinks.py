"""Where readings go: JSON lines, TensorBoard, Weights & Biases; `SINKS` has them by name."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import torch

from unsmooth.errors import expected
from unsmooth.files import check_writable, finite
from unsmooth.monitor.reading import Reading
from unsmooth.monitor.trouble import Teller, one_line
from unsmooth.registry import Registry
from unsmooth.scanning.ranks import world
from unsmooth.scanning.undisturbed import random_kept

if TYPE_CHECKING:
    from unsmooth.training.folder import Events


@dataclass(frozen=True)
class Card:
    """What a monitor is, for its sinks.

    Args:
        name: What to call the run.
        folder: Where files go.
        step: Step at which it begins; after a resume what was written of later steps is void.
        about: Definitions of the metrics, the model, versions: plain data.
    """

    name: str
    folder: Path
    step: int
    about: Mapping[str, Any]


class Sink:
    """Takes readings somewhere; only the first process has one.

    An error of a sink is told, and the training goes on; after three in a row the sink is left out.
    """

    def open(self, card: Card) -> str:
        """Begin; returns something the user should know, in a line, or nothing."""
        raise NotImplementedError

    def write(self, reading: Reading) -> None:
        """Take a reading."""
        raise NotImplementedError

    def tell(self, step: int, kind: str, text: str) -> None:
        """Take an "alarm" of a rule, or a "note" of trouble."""

    def close(self, state: str) -> None:
        """The end: "finished", or "stopped" by an error."""


SINKS = Registry[type[Sink]]("sink")


def scalars(reading: Reading) -> dict[str, float]:
    """Every finite number by a name that sorts by layer.

    >>> from unsmooth.scanning.result import Row
    >>> scalars(Reading(1, (Row(3, "residual", "mean_cosine", 0.5, 0, 0, 0, 8, 64),)))
    {'mean_cosine/residual/layer_03': 0.5}
    """
    return {
        "/".join(filter(None, (row.metric, row.stack, row.site, f"layer_{row.layer:02d}"))): row.mean
        for row in reading.rows
        if row.mean == row.mean
    }


FILE = "monitor.jsonl"


class JSONLines(Sink):
    """Appends, and flushes every line: a run that is killed leaves what it has read."""

    def __init__(self) -> None:
        self._path: Path | None = None

    def open(self, card: Card) -> str:
        """A line that says what follows; lines of an earlier run in the same folder stay in the file."""
        check_writable(card.folder)
        card.folder.mkdir(parents=True, exist_ok=True)
        self._path = card.folder / FILE
        self._add(kind="start", step=card.step, name=card.name, **card.about)
        return ""

    def write(self, reading: Reading) -> None:
        """A line."""
        self._add(kind="reading", **reading.line())

    def tell(self, step: int, kind: str, text: str) -> None:
        """A line."""
        self._add(kind=kind, step=step, text=text)

    def close(self, state: str) -> None:
        """A last line."""
        self._add(kind="end", state=state)

    def _add(self, **fields: Any) -> None:
        if self._path is None:
            return
        line = json.dumps(finite({"kind": fields.pop("kind"), "time": round(time.time(), 3), **fields}))
        with self._path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")


SINKS.add("jsonl", JSONLines)


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


_SECONDS_TO_WAIT = 3.0  # seconds to wait for an answer before a run is made offline


class WandB(Sink):
    """Scalars under ``unsmooth/``, over ``unsmooth/step``.

    Args:
        options: For ``wandb.init`` where no run is going on, such as ``project="mine"``.
    """

    def __init__(self, **options: Any) -> None:
        self.options = options
        self._run: Any = None
        self._own = False

    def open(self, card: Card) -> str:
        """Join the run that is going on, or begin one."""
        try:
            import wandb
        except ImportError as error:
            raise expected("the package wandb", f"none ({error})", 'pip install "unsmooth[wandb]"') from None
        self._run, said = wandb.run, ""
        if self._run is None:
            self._run, said = self._begin(wandb, card)
            self._own = True
        self._run.define_metric("unsmooth/step")
        self._run.define_metric("unsmooth/*", step_metric="unsmooth/step")
        return said

    def _begin(self, wandb: Any, card: Card) -> tuple[Any, str]:
        card.folder.mkdir(parents=True, exist_ok=True)
        asked = {"project": "unsmooth", "name": card.name, "dir": str(card.folder), "config": dict(card.about)}
        asked |= self.options
        why = "" if "mode" in asked or os.environ.get("WANDB_MODE") else _why_offline()
        if not why:
            try:
                return wandb.init(**asked), ""
            except Exception as error:
                why = one_line(error)
        run = wandb.init(**{**asked, "mode": "offline"})
        return run, f"W&B cannot be reached ({why}); its run is kept offline. `wandb sync {run.dir}/..` sends it later."

    def write(self, reading: Reading) -> None:
        """Scalars of one step; in somebody else's run they wait for its next line, so that it counts as before."""
        if self._run is not None:
            numbers = {f"unsmooth/{name}": value for name, value in scalars(reading).items()}
            self._run.log({**numbers, "unsmooth/step": reading.step}, commit=self._own)

    def tell(self, step: int, kind: str, text: str) -> None:
        """An alarm, as W&B's own."""
        if self._run is not None and kind == "alarm":
            self._run.alert(title="unsmooth", text=text)

    def close(self, state: str) -> None:
        """End the run where it is our own."""
        if self._run is not None and self._own:
            self._run.finish(exit_code=0 if state == "finished" else 1)


def _why_offline() -> str:
    """Why a run cannot be online, asked quickly: W&B itself waits for minutes."""
    address = urlsplit(os.environ.get("WANDB_BASE_URL") or "https://api.wandb.ai")
    if os.environ.get("HTTPS_PROXY") or os.environ.get("https_proxy"):
        return ""
    try:
        place = (address.hostname or "", address.port or (443 if address.scheme == "https" else 80))
        socket.create_connection(place, timeout=_SECONDS_TO_WAIT).close()
    except OSError as error:
        return one_line(error)
    return ""


SINKS.add("wandb", WandB)


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
