"""One run from its settings to its folder: build, step, look, save, and take up where it was left."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

import unsmooth
from unsmooth.errors import UnsmoothError, expected
from unsmooth.remedies.specification import apply_wishes, parse_remedies
from unsmooth.training.anomaly import find_origin
from unsmooth.training.capture import Replay
from unsmooth.training.checkpoint import Checkpoints
from unsmooth.training.config import Config
from unsmooth.training.finishing import write_final
from unsmooth.training.folder import Events, Lines, RunFolder, Watchmaker
from unsmooth.training.measuring import measure_spectra, measure_tokens
from unsmooth.training.place import Place
from unsmooth.training.snapshot import restore, snapshot, unwrapped
from unsmooth.training.step import NEVER, Step
from unsmooth.training.task import TASKS
from unsmooth.training.timing import Timetable, share_of, timetable
from unsmooth.training.wrapping import wrapped


class LossNotFinite(UnsmoothError):
    """The loss became NaN or Inf; the message says where, and the last good checkpoint is kept."""


@dataclass(frozen=True)
class Progress:
    """How far a run is, for whoever shows it."""

    name: str
    step: int
    steps: int
    epoch: float
    seconds: float
    said: dict[str, float]


class Run:
    """A run that moves one step at a time, so that several may share a device.

    Args:
        config: Its settings.
        folder: Its files; the settings are already there.
        place: This process.
        tell: Called with a `Progress` whenever there is something to show.
    """

    def __init__(
        self, config: Config, folder: RunFolder, place: Place, tell: Callable[[Progress], None] = lambda _: None
    ) -> None:
        self.config, self.folder, self.place, self._tell = config, folder, place, tell
        share = share_of(config, place.ranks)
        self.task = TASKS[config.task](config, place, share)
        self.table: Timetable = timetable(config, self.task.batches, share, place.ranks)
        self._check_class_of_task()
        model = apply_wishes(self.task.network().to(self.task.dtype), self._wishes(), seed=config.seed)
        self.parameters = sum(one.numel() for one in model.parameters())
        model = wrapped(model.to(place.device).train(), config, place)
        self.engine = Step(
            self.task,
            model,
            config,
            place,
            steps=self.table.steps,
            warmup=self.table.warmup,
            adds_up=self.table.passes > 1,
        )
        self.checkpoints = Checkpoints(folder.checkpoints)
        self.log, self.spectra = Lines(folder.path / "log.jsonl"), Lines(folder.path / "spectra.jsonl")
        self.step, self.said = 0, dict[str, float]()
        self._take_up()

    def _check_class_of_task(self) -> None:
        if self.place.ranks > 1 and self.config.engine.graph == "on":
            raise expected("one process for a captured step", f"{self.place.ranks}", "--set graph=auto")

    def _wishes(self) -> tuple[Any, ...]:
        return tuple(wish for text in self.config.remedies for wish in parse_remedies(text))

    def _take_up(self) -> None:
        """Capture where that pays, then start from the first weights or from the newest checkpoint."""
        state = snapshot(self.engine, copied=True)
        self.task.begin(0)
        self.replay = Replay(self.engine, fused=self._fused) if self._captured else None
        saved = self.checkpoints.latest()
        with self.stream():
            restore(self.engine, state if saved is None else saved[1]["state"])
        self.step = 0 if saved is None else saved[0]
        self.watch = Watchmaker(0.0 if saved is None else saved[1]["seconds"])
        self._since = (self.step, self.watch.seconds)
        if self.place.first:
            self.log.cut(self.step if saved else -1)
            self.spectra.cut(self.step if saved else -1)
            self.events: Events | None = Events(self.folder.path / "events", after=self.step)
            self._write_manifest("running")
        else:
            self.events = None

    @property
    def _captured(self) -> bool:
        wish, able = self.config.engine.graph, self.place.device.type == "cuda" and self.place.ranks == 1
        if wish == "on" and not able:
            raise expected("one GPU for a captured step", str(self.place.device), "--set graph=off")
        return able and wish != "off"

    @property
    def _fused(self) -> bool:
        wish = self.config.engine.compile
        return wish == "on" or (wish == "auto" and self.place.device.type == "cuda")

    @property
    def done(self) -> bool:
        """Whether all steps were taken."""
        return self.step >= self.table.steps

    def stream(self) -> AbstractContextManager[Any]:
        """The stream on which this run's work is queued."""
        return torch.cuda.stream(self.replay.stream) if self.replay is not None else nullcontext()

    def advance(self) -> None:
        """One step, and what is due after it. Hands work to the device without waiting, unless something is due."""
        if self.step == 0:
            self._measure_if_due()
        passes = self.table.passes_of(self.step)
        before = self.table.batches_before(self.step)
        mover: Any = self.replay or self.engine
        with self.stream():
            if self.engine.adds_up:
                self.engine.passes.fill_(passes)
            for number in range(passes):
                self.task.begin(before + number)
                with self._holding_back(number < passes - 1):
                    mover.accumulate()
            mover.update()
        self.step += 1
        self._after_step()

    def _holding_back(self, more: bool) -> AbstractContextManager[Any]:
        """Between micro-batches of one step processes need not agree on gradients yet."""
        no_sync = getattr(self.engine.model, "no_sync", None)
        return no_sync() if more and callable(no_sync) else nullcontext()

    def _after_step(self) -> None:
        with self.stream():
            if self.step % self.config.log_every == 0 or self.step in self._due or self.done:
                self._log()
            if self.step in self.table.evaluations:
                self._evaluate()
            self._measure_if_due()
            if self.step in self.table.checkpoints:
                self.save()

    @property
    def _due(self) -> frozenset[int]:
        return self.table.evaluations | self.table.checkpoints | self.table.measurements

    def _log(self) -> None:
        engine, (since, then) = self.engine, self._since
        count = self.step - since
        if not count:
            return
        loss, norm, bad = (
            self.place.mean(engine.loss_sum.clone()).item(),
            engine.norm_sum.item(),
            int(engine.first_bad),
        )
        if self._anywhere(bad != NEVER):
            self._stop(bad)
        engine.loss_sum.zero_()
        engine.norm_sum.zero_()
        now = self.watch.seconds
        speed = (self.table.batches_before(self.step) - self.table.batches_before(since)) * self.task.share
        numbers = {
            "loss": loss / count,
            "lr": engine.rate.item(),
            "gradient_norm": norm / count,
            "samples_per_second": speed * self.place.ranks / max(now - then, 1e-9),
        }
        self._since = (self.step, now)
        self._note("train", numbers)

    def _anywhere(self, bad: bool) -> bool:
        found = torch.tensor(float(bad), device=self.place.device, dtype=torch.float64)
        return self.place.mean(found).item() > 0

    def _note(self, kind: str, numbers: dict[str, Any]) -> None:
        epoch = self.table.epoch_after(self.step)
        values = {name: value for name, value in numbers.items() if isinstance(value, float)}
        self.said |= {f"{kind}/{name}": value for name, value in values.items()}
        if self.events is not None:
            self.log.add(kind=kind, step=self.step, epoch=epoch, **numbers)
            self.events.add(self.step, **{f"{kind}/{name}": value for name, value in values.items()})
        self._tell(
            Progress(self.folder.path.name, self.step, self.table.steps, epoch, self.watch.seconds, dict(self.said))
        )

    @contextmanager
    def _at_rest(self) -> Iterator[nn.Module]:
        """The model without its wrapper, in evaluation mode."""
        model = unwrapped(self.engine.model)
        self.engine.model.eval()
        try:
            yield model
        finally:
            self.engine.model.train()

    def _evaluate(self) -> None:
        with self._at_rest() as model, self.engine.arithmetic():
            found = self.task.evaluate(model)
            if self.engine.average:
                with self.engine.averaged():
                    found |= {f"average_{name}": value for name, value in self.task.evaluate(model).items()}
        self._note("evaluation", found)

    def _measure_if_due(self) -> None:
        if self.step not in self.table.measurements:
            return
        name = f"step-{self.step:08d}"
        with self.stream(), self._at_rest() as model:
            found = measure_tokens(model, self.task, self.config, name)
            lines = measure_spectra(model)
        if self.place.first:
            found.save(self.folder.path / "scans" / name)
            self.spectra.add(step=self.step, epoch=self.table.epoch_after(self.step), layers=lines)
        self._note("measurement", {"scan": f"scans/{name}"})

    def save(self) -> None:
        """Write a checkpoint of this moment."""
        state = snapshot(self.engine)
        if self.place.first:
            self.checkpoints.save(self.step, {"state": state, "seconds": self.watch.seconds})
        self.place.wait()

    def finish(self) -> None:
        """Write the trained model, and say that the run is over."""
        if self.place.first:
            write_final(unwrapped(self.engine.model), self.task, self.folder, self.engine)
            self._write_manifest("finished")
        if self.events is not None:
            self.events.close()

    def _stop(self, bad: int) -> None:
        """Run the failing step again, with the weights that it had, and name the place."""
        batch = torch.tensor(self.table.batches_before(bad), device=self.place.device)
        self.task.begin(int(batch))
        model = self.engine.model.train()

        def loss() -> torch.Tensor:
            with self.engine.arithmetic():
                return self.task.loss(model, batch)

        origin = find_origin(model, loss)
        kept = self.checkpoints.names()
        self._write_manifest("stopped", reason=f"loss not finite in step {bad}, from {origin}")
        kept_words = f"the last good checkpoint is {kept[-1]}" if kept else "there was no checkpoint yet"
        hint = f"a lower --set lr or a longer --set warmup; {kept_words} in {self.folder.checkpoints}"
        raise LossNotFinite(str(expected(f"a finite loss in step {bad}", f"NaN or Inf, first in {origin}", hint)))

    def _write_manifest(self, state: str, **more: Any) -> None:
        if not self.place.first:
            return
        self.folder.write_manifest(
            {
                "unsmooth": unsmooth.__version__,
                "torch": torch.__version__,
                "python": platform.python_version(),
                "device": _named(self.place.device),
                "processes": self.place.ranks,
                "recipe": self.config.recipe,
                "size": self.config.size,
                "seed": self.config.seed,
                "remedies": list(self.config.remedies),
                "data": self.task.describe(),
                "parameters": self.parameters,
                "captured": self.replay is not None,
                "steps": self.table.steps,
                "done": self.step,
                "seconds": self.watch.seconds,
                "state": state,
                "last": self.said,
                **more,
            }
        )


def _named(device: torch.device) -> str:
    return (
        torch.cuda.get_device_name(device)
        if device.type == "cuda"
        else f"{device.type} ({platform.processor() or platform.machine()})"
    )
