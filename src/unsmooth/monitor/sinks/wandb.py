"""Weights & Biases: into the run that is going on, or one of its own, which is offline where there is no network."""

from __future__ import annotations

import os
import socket
from typing import Any
from urllib.parse import urlsplit

from unsmooth.errors import expected
from unsmooth.monitor.reading import Reading
from unsmooth.monitor.sinks.sink import SINKS, Card, Sink, scalars
from unsmooth.monitor.telling import one_line

_PATIENCE = 3.0  # seconds to wait for an answer before a run is made offline


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
        socket.create_connection(place, timeout=_PATIENCE).close()
    except OSError as error:
        return one_line(error)
    return ""


SINKS.add("wandb", WandB)
