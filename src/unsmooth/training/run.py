"""One run from its settings to its folder: build, step, look, save, and take up where it was left."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

from unsmooth.errors import UnsmoothError, expected
from unsmooth.models import find_anatomy, value_projection
from unsmooth.remedies.specification import apply_wishes, parse_remedies
from unsmooth.scanning import Scan, scan
from unsmooth.scanning.plan import check_metrics
from unsmooth.scanning.undisturbed import any_kernel
from unsmooth.spectra import asymmetry, head_eigenvalues
from unsmooth.training.anomaly import where_it_began
from unsmooth.training.capture import Fusing, How, Replay
from unsmooth.training.checkpoint import Checkpoints, load_checkpoint, save_checkpoint
from unsmooth.training.config import Config
from unsmooth.training.folder import RunFolder
from unsmooth.training.journal import Journal, Progress
from unsmooth.training.place import Place
from unsmooth.training.state import ModelAtRest, restore, snapshot, wrapped, write_final
from unsmooth.training.step import NEVER, Step
from unsmooth.training.task import Task
from unsmooth.training.tasks import TASKS
from unsmooth.training.timing import Timetable, share_of, timetable


class LossNotFiniteError(UnsmoothError):
    """The loss became NaN or Inf; the message says where, and the last good checkpoint is kept."""


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
        self.config, self.folder, self.place = config, folder, place
        check_metrics(config.measuring.metrics or None)  # before the first look at tokens
        share = share_of(config, place.ranks)
        self.task = TASKS[config.task](config, place, share)
        self.table: Timetable = timetable(config, self.task.batches, share, place.ranks)
        model = self._built()
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
        self._at_rest = ModelAtRest(self.engine, self._built)
        self.checkpoints = Checkpoints(folder.checkpoints)
        self.journal = Journal(folder, self.table, place, tell)
        self.step = 0
        self._take_up()

    def _built(self) -> nn.Module:
        """The model with its first weights and its remedies, on the CPU."""
        wishes = tuple(wish for text in self.config.remedies for wish in parse_remedies(text))
        return apply_wishes(self.task.network().to(self.task.dtype), wishes, seed=self.config.seed)

    def _take_up(self) -> None:
        """Capture where that pays, then start from the first weights or from the newest checkpoint."""
        if self.place.first:
            self.folder.sweep()
        found = self.checkpoints.latest()
        first = snapshot(self.engine, copied=True) if self._captured and found is None else None
        self.task.begin(0)
        self.fusing = Fusing(self.engine, self._how)
        self.replay = Replay(self.engine, self.fusing) if self._captured else None
        about: dict[str, Any] = {"seconds": 0.0, "said": {}}
        with self.stream():
            if first is not None:
                restore(self.engine, first)
            if found is not None:
                about = load_checkpoint(self.engine, found)
                self.step = found.step
                self._check_taken_up(about)
        self.journal.open(None if found is None else self.step, about["seconds"], about["said"])
        self._since = (self.step, self.journal.watch.seconds)
        self._write_manifest("running")
        for words in self._out_of_the_ordinary():
            self.journal.show(self.step, words)

    def _out_of_the_ordinary(self) -> Iterator[str]:
        """What whoever started the run should know."""
        wanted = self.config.data.name
        if self.task.describe()["synthetic"] and wanted != "synthetic":
            yield f"There is no data/{wanted} here: this run learns from made-up data; see `unsmooth data get`."
        for name in self.checkpoints.passed_over:
            yield f"{name} is not whole and was passed over; the run goes on from step {self.step}."

    def _check_taken_up(self, about: dict[str, Any]) -> None:
        """Refuse to go on with other data, or with a number of processes that makes other batches."""
        digest = self.task.describe().get("digest")
        if about["data"] != digest:
            raise expected(f"the data that the run began with ({about['data']})", digest, "putting them back")
        if int(self.engine.batch) != self.table.batches_before(self.step):
            hint = f"as many as before ({about['processes']}), or --set micro_batch=none from the start"
            raise expected("processes that share batches as before", f"{self.place.ranks} processes", hint)

    @property
    def _captured(self) -> bool:
        wish, able = self.config.engine.graph, self.place.device.type == "cuda" and self.place.ranks == 1
        if wish == "on" and not able:
            got = f"{self.place.ranks} processes" if self.place.ranks > 1 else str(self.place.device)
            raise expected("one GPU for a captured step", got, "--set graph=off")
        if wish == "on" and not self.engine.added.capturable:
            raise expected("losses that a captured step can hold", ", ".join(self.config.losses), "--set graph=off")
        return able and wish != "off" and self.engine.added.capturable

    @property
    def _how(self) -> How:
        """What is compiled: in "auto", blocks, where the step is captured."""
        wish = self.config.engine.compile
        if wish == "auto":
            return "blocks" if self._captured else "off"
        return "blocks" if wish == "on" else wish

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
        self.move()
        self._after_step()

    def move(self) -> None:
        """One step alone, without looking, saving or writing down."""
        passes = self.table.passes_of(self.step)
        before = self.table.batches_before(self.step)
        mover: Any = self.replay or self.engine
        with self.stream(), self.fusing if self.replay is None else nullcontext():
            if self.engine.adds_up:
                self.engine.passes.fill_(passes)
            for number in range(passes):
                self.task.begin(before + number)
                with self._holding_back(number < passes - 1):
                    mover.accumulate()
            mover.update()
        self.step += 1

    def _holding_back(self, more: bool) -> AbstractContextManager[Any]:
        """Between micro-batches of one step processes need not agree on gradients yet."""
        no_sync = getattr(self.engine.model, "no_sync", None)
        return no_sync() if more and callable(no_sync) else nullcontext()

    def _after_step(self) -> None:
        with self.stream():
            if self.may_pause:
                self._log()
            if self.step in self.table.evaluations:
                self._evaluate()
            self._measure_if_due()
            if self.step in self.table.checkpoints:
                self.save()
        if self.step in self.table.due:
            self._since = (
                self.step,
                self.journal.watch.seconds,
            )  # looking and saving is no part of the speed of training

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
        if bad != NEVER:
            self._stop(bad)
        engine.loss_sum.zero_()
        engine.norm_sum.zero_()
        now = self.journal.watch.seconds
        speed = (self.table.batches_before(self.step) - self.table.batches_before(since)) * self.task.share
        numbers = {
            "loss": loss / count,
            "lr": engine.rate.item(),
            "gradient_norm": norm / count,
            "samples_per_second": speed * self.place.ranks / max(now - then, 1e-9),
        }
        self._since = (self.step, now)
        self.journal.note("train", self.step, numbers)

    def _evaluate(self) -> None:
        with self._at_rest() as model, self.engine.arithmetic():
            found = self.task.evaluate(model)
        if self.engine.average:
            with self._at_rest(average=True) as model, self.engine.arithmetic():
                found |= {f"average_{name}": value for name, value in self.task.evaluate(model).items()}
        self.journal.note("evaluation", self.step, found)

    def _measure_if_due(self) -> None:
        if self.step not in self.table.measurements:
            return
        name = f"step-{self.step:08d}"
        with self.stream(), self._at_rest() as model:
            found = measure_tokens(model, self.task, self.config, name)
            lines = measure_spectra(model)
        if self.place.first:
            found.save(self.folder.path / "scans" / name)
        self.journal.note_spectra(self.step, lines)
        self.journal.note("measurement", self.step, {"scan": f"scans/{name}"})

    def save(self) -> None:
        """Write a checkpoint of this moment."""
        about = {
            "seconds": self.journal.watch.seconds,
            "said": self.journal.said,
            "data": self.task.describe().get("digest"),
            "processes": self.place.ranks,
        }
        self.journal.sync()
        save_checkpoint(self.engine, self.checkpoints, self.step, about)

    @property
    def may_pause(self) -> bool:
        """Whether nothing is half counted: a pause here leaves no trace in the log."""
        return self.step % self.config.log_every == 0 or self.step in self.table.due

    def pause(self) -> None:
        """Save, and leave the rest for another time."""
        with self.stream():
            if self.step not in self.table.checkpoints:
                self.save()
        self._write_manifest("paused")
        self.journal.close()
        self.journal.show(self.step, f"{self.folder.name} pauses after step {self.step:,} of {self.table.steps:,}.")

    def finish(self) -> None:
        """Write the trained model, and say that the run is over."""
        with self.stream():
            write_final(self.engine, self._at_rest, self.folder)
        self._write_manifest("finished")
        self.journal.close()

    def _stop(self, bad: int) -> None:
        """Say where the loss of step `bad` went wrong, and end."""
        before = self.table.batches_before(bad)
        origin = where_it_began(self.engine, range(before, before + self.table.passes_of(bad)))
        kept = self.checkpoints.names()
        self._write_manifest("stopped", reason=f"loss not finite in step {bad}, from {origin}")
        self.journal.close()
        kept_words = f"the last good checkpoint is {kept[-1]}" if kept else "there was no checkpoint yet"
        hint = f"a lower --set lr or a longer --set warmup; {kept_words} in {self.folder.checkpoints}"
        raise LossNotFiniteError(str(expected(f"a finite loss in step {bad}", f"NaN or Inf, first in {origin}", hint)))

    def _write_manifest(self, state: str, **more: Any) -> None:
        about = {"data": self.task.describe(), "parameters": self.parameters, "captured": self.replay is not None}
        self.journal.write_manifest(state, self.step, self.config, **about, **more)


QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)


def measure_tokens(model: nn.Module, task: Task, config: Config, name: str) -> Scan:
    """A scan of the model as it is, on test data that stays the same over the run."""
    with any_kernel():
        return scan(
            model,
            task.probe(config.measuring.sequences),
            metrics=list(config.measuring.metrics) or None,
            progress=False,
            name=name,
            seed=config.seed,
        )


def measure_spectra(model: nn.Module) -> list[dict[str, Any]]:
    """Each layer's H = Σ_h W_V^h W_O^h: its asymmetry, and where the eigenvalues of the heads lie.

    Asymmetry is ‖H − Hᵀ‖_F / (2‖H‖_F) of the sum, and norm is its ‖H‖₂, which eigenvalues bound only where H is
    symmetric; the eigenvalues are those of the single heads, d_h each, and
    `quantiles` those of their real parts at `QUANTILES`. P1 (arXiv 2401.04301) looks at both over training.
    """
    found = []
    for block in range(len(find_anatomy(model).blocks)):
        weights = value_projection(model, block)
        h = torch.einsum("hdk,hke->de", weights.w_v.double(), weights.w_o.double())
        values = head_eigenvalues(weights.w_v, weights.w_o).flatten()
        real = values.real.sort().values
        at = (torch.tensor(QUANTILES, dtype=torch.float64) * (len(real) - 1)).round().long()
        found.append(
            {
                "layer": block + 1,
                "asymmetry": asymmetry(h),
                "negative_share": float((real < 0).double().mean()),
                "spectral_radius": float(values.abs().max()),
                "norm": float(torch.linalg.matrix_norm(h, ord=2)),
                "quantiles": real[at].tolist(),
            }
        )
    return found
