"""The monitor itself: counts steps, looks at the model now and then, and never lets the training down."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import torch.distributed as dist
from torch import Tensor, nn

from unsmooth.errors import UnsmoothError, expected
from unsmooth.functional import BoundMetric
from unsmooth.models import SITES, Anatomy, find_stacks
from unsmooth.models.hooks import is_compiled
from unsmooth.monitor.look import FixedBatch, LivePass, Look, Offer
from unsmooth.monitor.probe import Probe, plain
from unsmooth.monitor.reading import Reading
from unsmooth.monitor.settings import (
    Alarm,
    GivenRule,
    Rule,
    Settings,
    check,
    check_every,
    check_sequences,
    fit,
    without,
)
from unsmooth.monitor.sinks import Card, Outlets, Sink
from unsmooth.monitor.trouble import Problem, Teller, one_line
from unsmooth.presets import Preset
from unsmooth.scanning.assemble import rows_of
from unsmooth.scanning.collect import Collector
from unsmooth.scanning.manifest import describe_definitions, describe_versions
from unsmooth.scanning.plan import check_tokens
from unsmooth.scanning.ranks import world
from unsmooth.scanning.result import Row
from unsmooth.scanning.statistics import Place

if TYPE_CHECKING:
    from unsmooth.monitor.lightning import MonitorCallback
    from unsmooth.monitor.trainer import TrainerMonitor

# After so many looks that failed one after another there will be no more.
_PATIENCE = 3


class Monitor:
    """Watches how alike the tokens of a model become while it trains.

    Every `every` steps a fixed batch goes through the plain module in evaluation mode, uncompiled and without
    gradients, and the numbers of a scan are written down. Weights, buffers, modes, random numbers and gradients are
    afterwards as they were: a training run with a monitor ends with the same bits as without. Whatever goes wrong in
    the monitor is told in one line, and the training goes on. Under torchrun every process has to call `step`; the
    numbers are those of all of them, and the first one writes. A look costs an uncompiled pass of a few sequences and
    some kernels for every five layers or so; a GPU is waited for once, at the end of it. A model of up to 2**27 weights
    on one GPU is called once, and then its kernels are one CUDA graph until something but its weights' values changes.

    Args:
        model: Compiled, wrapped or plain; None where a trainer brings it.
        every: Steps from one look to the next. The first is after the first step, or before it where `probe` is given.
        metrics: Names as in `unsmooth.scan`; None for mean_cosine and token_diversity.
        rules: Such as "mean_cosine@last > 0.95 for 500 steps", alone to warn, or ("…", "stop"), or ("…", function). A
            training may go well with tokens that are all alike; see `Rule`.
        probe: The batch to look at: a tensor, or a dict by the model's arguments. "first" takes the first
            that the model is called with in training. None reads the training passes themselves, dropout and all.
        sites: Where in each block, as in `unsmooth.scan`.
        tokens: "content" leaves special tokens out, "all" does not.
        preset: A published definition by name, such as "vita"; it fixes metrics, sites and tokens, as in
            `unsmooth.scan`. Where it does not fit the model, the usual metrics are measured.
        sequences: How many sequences of the first batch to look at; None for a quarter of it, 2 to 8.
        sinks: Names of `unsmooth.monitor.SINKS` ("jsonl", "tensorboard", "wandb"), or sinks.
        out: Folder to write to; by default a new one in runs/.
        blocks: Pattern of blocks for a model that is not recognised.
        name: What to call the run; by default the model's class.
        strict: Raise what is wrong with these settings, instead of leaving it out.

    Example:
        >>> import torch
        >>> layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        >>> model = torch.nn.TransformerEncoder(layer, 3)
        >>> with Monitor(model, every=10, sinks=()) as monitor:
        ...     for _ in range(20):
        ...         loss = model(torch.randn(4, 10, 8)).square().mean()  # and backward, and an optimiser's step
        ...         _ = monitor.step()
        >>> monitor.last.step, [row.layer for row in monitor.last.curve("mean_cosine")]
        (20, [0, 1, 2, 3])
    """

    def __init__(
        self,
        model: nn.Module | None = None,
        *,
        every: int = 50,
        metrics: Sequence[str] | None = None,
        rules: Sequence[GivenRule] = (),
        probe: Any = "first",
        sites: Sequence[str] = ("residual",),
        tokens: str = "content",
        preset: str | Preset | None = None,
        sequences: int | None = None,
        sinks: Sequence[str | Sink] = ("jsonl",),
        out: str | Path | None = None,
        blocks: str | None = None,
        name: str | None = None,
        strict: bool = False,
    ) -> None:
        self.model, self.every = model, check_every(every)
        self._blocks, self._name = blocks, name
        self._sequences = check_sequences(sequences)
        self._strict, self._teller = strict, Teller()
        self._given = probe
        self.settings = check(metrics, sites, check_tokens(tokens), preset, rules, sinks, self._refuse)
        self.folder = Path(out) if out is not None else Path("runs") / time.strftime("monitor-%Y%m%d-%H%M%S")
        self._outlets = Outlets(self.settings.sinks, self._teller)
        self.last: Reading | None = None
        self.alarms: list[Alarm] = []
        self.should_stop = False
        self._step = self._failures = 0
        self._look: Look | None = None
        self._probe: Probe | None = None
        self._open = self._begun = False

    def __enter__(self) -> Self:
        self.begin()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        self.close("finished" if kind is None else "stopped")

    def begin(self, model: nn.Module | None = None, step: int = 0) -> None:
        """Start watching, `step` steps into the training."""
        if self._open:
            return
        self.model = self.model if self.model is not None else model
        self._step, self._open, self._begun, self.should_stop = step, True, True, False
        try:
            self._set_up()
        except Exception as error:
            self._look = None
            if self._strict:
                raise
            self._teller.say(f"The monitor watches nothing, the training goes on. {one_line(error)}")
            return
        self._outlets.begin(self._card())
        if self._look is not None and self._look.at_once:
            self._take()
        self._expect_next()

    def _set_up(self) -> None:
        if not isinstance(self.model, nn.Module):
            raise expected("a model to watch", type(self.model).__name__, "unsmooth.Monitor(model)")
        model = plain(self.model)
        asked = self.settings = fit(self.settings, find_stacks(model, self._blocks), self._refuse)
        self._probe = Probe(model, asked.metrics, asked.sites, asked.tokens, self._blocks)
        if self._given is None and any(map(is_compiled, self.model.modules())):
            self._look_at_first_batch("The model is compiled")
        elif self._given is None:
            self._look = LivePass(self._probe)
        else:
            self._look = FixedBatch(self._probe, self.model, self._given, self._sequences)

    def _look_at_first_batch(self, why: str) -> None:
        assert self._probe is not None
        assert self.model is not None
        self._teller.say(f"{why}: the monitor looks at the first batch instead of at training passes.")
        self._look = FixedBatch(self._probe, self.model, "first", self._sequences)

    def _card(self) -> Card:
        assert self._probe is not None
        about = describe(self._probe, self.settings, self.every, self._given)
        return Card(self._name or type(self._probe.model).__name__, self.folder, self._step, about)

    def offer(self, batch: Offer) -> None:
        """A batch, or what makes one, to look at where none is seen: calls of a compiled model may not be."""
        if isinstance(self._look, FixedBatch) and self._look.offered is None:
            self._look.offered = batch

    def step(self, number: int | None = None) -> Reading | None:
        """Call after every step of the optimiser; returns a reading where one was due.

        The first call begins the watching where neither `begin` nor ``with`` has; the first look is then a step later.

        Args:
            number: Steps done, where somebody else counts them.
        """
        late = not self._begun
        if late:
            self.begin(step=0 if number is None else max(0, number - 1))
        self._step = self._step + 1 if number is None else number
        if not self._open or self._look is None:
            return None
        early = self.last is None and not isinstance(self._look, LivePass)
        # The calls of this step were before there was anybody to see them.
        blind = late and not self._look.at_once
        found = self._take() if (early or self._step % self.every == 0) and not blind else None
        self._expect_next()
        return found

    def _expect_next(self) -> None:
        if self._look is not None:
            self._look.expect(due=(self._step + 1) % self.every == 0)

    def _take(self) -> Reading | None:
        """Look, write, and see to the rules."""
        reading = self._found()
        if isinstance(reading, Problem):
            return self._take() if self._fail(reading) else None
        self.last, self._failures = reading, 0
        self._outlets.write(reading)
        if not reading.healthy:
            self._teller.say(f"Activations are NaN or Inf from step {self._step} on.", key="nan")
        for rule in list(self.settings.rules):
            self._check(rule, reading)
        return reading

    def _found(self) -> Reading | Problem:
        """What a look shows, or why it failed, in all processes alike."""
        assert self._look is not None
        assert self._probe is not None
        start, problem = time.perf_counter(), None
        collectors: list[Collector] = []
        try:
            collectors = self._look.read()
            for collector in collectors:
                collector.settle()  # here the device is waited for, and nowhere before
        except Exception as error:
            problem = Problem.of(error)
        try:
            if problem := added_up(problem, collectors):
                return problem
            return reading_of(self._probe.stacks, collectors, self.settings.metrics, self._step, start)
        except Exception as error:
            return Problem.of(error)

    def _fail(self, problem: Problem) -> bool:
        """Tell, and find a way to go on; whether there is one by which the model can be looked at again at once."""
        self._failures += 1
        if (problem.lasting or self._failures >= _PATIENCE) and self._leaves_out(problem):
            self._failures = 0
            return not isinstance(self._look, LivePass)
        if isinstance(self._look, LivePass) and self._failures == 1:
            self._look.close()
            self._look_at_first_batch(f"Training passes cannot be read ({problem.text})")
            return False
        what = "The monitor could not read the model, the training goes on."
        self._teller.say(f"{what} {problem.text}", key=problem.text)
        if self._failures >= _PATIENCE and self._look is not None:
            self._teller.say(f"The monitor failed {_PATIENCE} times in a row and looks no more.")
            self._look.close()
            self._look = None
        return False

    def _leaves_out(self, problem: Problem) -> bool:
        """Measure without what alone is to blame, if something is, and if that leaves anything to measure."""
        assert self._probe is not None
        left = without(self.settings, problem) if problem.culprit else None
        if left is None:
            return False
        rules = [f"the rule {one.text!r}" for one in self.settings.rules if one not in left.rules]
        self._teller.say(f"The monitor does without {' and '.join([problem.culprit, *rules])}. {problem.text}")
        self.settings = left
        self._probe.measure(left.metrics, left.sites)
        return True

    def _check(self, rule: Rule, reading: Reading) -> None:
        try:
            alarm = rule.check(reading)
        except UnsmoothError as error:
            self.settings.rules.remove(rule)
            self._teller.say(f"The rule {rule.text!r} is left out. {error}")
            return
        if alarm is None:
            return
        self.alarms.append(alarm)
        self._outlets.tell(alarm.step, "alarm", alarm.text)
        if rule.then == "stop":
            self.stop()
        then = ", so the training is to stop." if rule.then == "stop" else "."
        self._teller.say(f"step {alarm.step}: {alarm.text}{then}", noted=True)
        if callable(rule.then):
            try:
                rule.then(alarm)
            except Exception as error:
                self._teller.say(f"What was to be called for {rule.text!r} failed. {one_line(error)}")

    def _refuse(self, error: Exception, without: str) -> None:
        if self._strict:
            raise error
        self._teller.say(f"The monitor does without {without}. {one_line(error)}")

    @property
    def steps(self) -> int:
        """Steps done."""
        return self._step

    def stop(self) -> None:
        """Ask the trainer to stop; in a loop of your own, look at `should_stop`."""
        self.should_stop = True

    def close(self, state: str = "finished") -> None:
        """Take every hook away and end the files; a second call does nothing."""
        if self._look is not None:
            self._look.close()
        if self._open:
            self._open = False
            self._outlets.close(state)

    if not TYPE_CHECKING:  # for whom every name would be one then

        def __getattr__(self, name: str) -> Any:
            """Help one who handed the monitor itself to a trainer, which then asks it for what callbacks have."""
            if name == "setup" or name.startswith("on_"):
                hint = "callbacks=[monitor.for_trainer()], or monitor.for_lightning()"
                raise AttributeError(str(expected("a callback", f"a Monitor, which has no {name!r}", hint)))
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def for_trainer(self) -> TrainerMonitor:
        """For ``transformers.Trainer(callbacks=[…])``."""
        from unsmooth.monitor.trainer import TrainerMonitor

        return TrainerMonitor(self)

    def for_lightning(self) -> MonitorCallback:
        """For ``lightning.Trainer(callbacks=[…])``."""
        from unsmooth.monitor.lightning import lightning_callback

        return lightning_callback(self)


def describe(probe: Probe, settings: Settings, every: int, given: Any) -> dict[str, Any]:
    """Plain data."""
    sites = {site: SITES[site] for site in probe.sites}
    return {
        "every": every,
        "looks_at": "training passes" if given is None else "the first batch" if isinstance(given, str) else "a batch",
        "model": {
            "class": type(probe.model).__name__,
            "stacks": [
                {"name": stack.stack, "host": stack.host.name, "blocks": len(stack.blocks)} for stack in probe.stacks
            ],
            "parameters": sum(one.numel() for one in probe.model.parameters()),
        },
        "rules": [rule.text for rule in settings.rules],
        "preset": None if settings.preset is None else settings.preset.describe(),
        "definitions": describe_definitions(settings.metrics, sites, probe.tokens),
        "versions": describe_versions(),
        "processes": world()[1],
    }


@dataclass(frozen=True)
class _Part:
    """What one process has seen of one stack; no places where the stack had no part in its pass."""

    places: tuple[Place, ...]
    dims: tuple[int, ...]
    sums: Mapping[str, Tensor]


def added_up(problem: Problem | None, collectors: Sequence[Collector]) -> Problem | None:
    """Let every collector hold the sums of all processes; returns the first problem that any of them has.

    Either all take part in a reading, or none does. All is said in one message: of each of a dozen sums by itself, a
    dozen GPUs would wait for each other a dozen times.
    """
    if world()[1] == 1:
        return problem
    own = [_Part(one.places, one.dims, {} if one.state is None else one.state.by_name()) for one in collectors]
    gathered: list[tuple[Problem | None, list[_Part]]] = [(None, [])] * world()[1]
    dist.all_gather_object(gathered, (problem, own))
    if found := next((problem for problem, _ in gathered if problem), None):
        return found
    for number, collector in enumerate(collectors):
        parts = [parts[number] for _, parts in gathered if parts[number].places]
        if parts and collector.state is None:
            collector.start(parts[0].places, parts[0].dims)
        if collector.state is not None:
            collector.state.become_total([part.sums for part in parts])
    return None


def reading_of(
    stacks: Sequence[Anatomy],
    collectors: Sequence[Collector],
    metrics: Sequence[BoundMetric],
    step: int,
    start: float,
) -> Reading:
    """The numbers that collectors hold; `start` is when the look began, by `time.perf_counter`."""
    rows: list[Row] = []
    healthy = True
    for stack, collector in zip(stacks, collectors, strict=True):
        if (state := collector.state) is not None:
            found = rows_of(collector, state, metrics)
            rows += [replace(row, stack=stack.stack) for row in found] if stack.stack else found
            healthy = healthy and not bool(state.nonfinite.any())
    return Reading(step, tuple(rows), time.perf_counter() - start, healthy)
