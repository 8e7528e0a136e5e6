"""Carrying an arena out: what is there is kept, what was begun is taken up, what another process does is left to it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from unsmooth.arena.budget import Budget, Settled, cut, length
from unsmooth.arena.checking import check_begun, check_data, check_one_data, check_settings, on_all_samples
from unsmooth.arena.choosing import complete, is_unable, outcomes, wanted_runs
from unsmooth.arena.folder import ArenaFolder
from unsmooth.arena.plan import PLAIN, Entrant, Plan, refusal
from unsmooth.arena.refusing import OtherResultsError, other_results
from unsmooth.arena.stopwatch import Stopwatch
from unsmooth.errors import expected
from unsmooth.evidence.keeping import differing_settings, kept
from unsmooth.evidence.together import train_together
from unsmooth.files import is_of_the_disk
from unsmooth.training import TASKS, Config
from unsmooth.training.data.hold_out import HoldOutError
from unsmooth.training.driving import Tell
from unsmooth.training.holding import HeldError, held
from unsmooth.training.place import Place, take_place
from unsmooth.training.plain import to_plain
from unsmooth.training.timing import share_of


def carry_out_arena(
    plan: Plan,
    folder: ArenaFolder,
    *,
    minutes: float | None = None,
    tell: Tell = lambda _: None,
    call: str = "",
    worker: int = 0,
    workers: int = 1,
) -> None:
    """Train everything that an arena wants and nobody else is at: of each entrant first its rates, then its seeds.

    A remedy that a model refuses, or that fails for any other reason than its loss, is written down with the reason
    and tried again by another call. What goes wrong with a plain model, or with the disk, is raised.

    Args:
        plan: What is wanted.
        folder: Where everything goes.
        minutes: Save and stop after so many; call it again to go on.
        tell: Called with every `Progress`.
        call: Names this call: what it found to be impossible it does not try twice.
        worker: Which of `workers` processes this is. Each begins with another model.
        workers: How many share the device.
    """
    with take_place(next(iter(plan.models.values())).engine.device) as place:
        if place.ranks > 1:
            raise expected("one process for an arena", f"{place.ranks}", "--processes 2 without torchrun")
        end = None if minutes is None else time.monotonic() + 60 * minutes
        work = _Work(plan, folder, place, end, tell, call, workers)
        names = list(plan.models)
        check_results(plan, folder)
        turn = worker * len(names) // workers
        for name in names[turn:] + names[:turn]:
            work.carry_out_model(name)


def settle_models(plan: Plan, folder: ArenaFolder) -> None:
    """Find out how many steps a budget of time is for each model, while nothing else is on the device."""
    with take_place(next(iter(plan.models.values())).engine.device) as place:
        work = _Work(plan, folder, place, None, lambda _: None, "", 1)
        for name in plan.models:
            if settled(plan, folder, name) is None:
                work.settle(name)
                work.forget_clock()


def check_results(plan: Plan, folder: ArenaFolder) -> None:
    """Refuse results that cannot stand beside those that are wanted, before anything is trained."""
    for name in plan.models:
        base = settled(plan, folder, name)
        for entrant in plan.on(name):
            if base is not None:
                check_settings(plan, folder, entrant, base)
        check_one_data(plan, folder, name)


def settled(plan: Plan, folder: ArenaFolder, name: str) -> Settled | None:
    """The settings of a model at the budget; None where it was not timed yet.

    Raises:
        OtherResultsError: It was settled with other settings.
    """
    known, config = folder.model(name), plan.models[name]
    if known is None:
        return None
    differing = differing_settings(known["settings"], config)
    then, now = known["budget"] and Budget.read(known["budget"]), plan.budget
    if differing or (then and then.meaning) != (now and now.meaning):
        said = ", ".join(differing) or f"budget {known['budget']}, now {now and now.text}"
        raise other_results(folder, f"results of {name} with the settings of now", f"others ({said})")
    unit = float(known["steps_of_a_unit"])
    return Settled(cut(config, int(known["steps"]), unit), unit)


@contextmanager
def _naming_the_option() -> Iterator[None]:
    """Whoever holds samples out does not know what the option is called here."""
    try:
        yield
    except HoldOutError as error:
        raise HoldOutError(f"{error} In an arena: another --hold-out, or --hold-out 0.") from None


@dataclass
class _Work:
    """One process in an arena."""

    plan: Plan
    folder: ArenaFolder
    place: Place
    end: float | None
    tell: Tell
    call: str
    workers: int
    _stopwatch: Stopwatch | None = field(default=None, init=False)
    _known_data: set[str] = field(default_factory=set, init=False)

    @property
    def late(self) -> bool:
        """Whether the time is up."""
        return self.end is not None and time.monotonic() > self.end

    def carry_out_model(self, name: str) -> None:
        """Every remedy on one model, as far as time allows."""
        base = settled(self.plan, self.folder, name)
        try:
            for entrant in self.plan.on(name):
                if complete(self.plan, self.folder, entrant):
                    self._tidy(entrant)
                    continue
                if self._still_refused(entrant) or self.late:
                    continue
                base = base or self.settle(name)
                with suppress(HeldError):  # somebody else is at it
                    self._carry_out(entrant, base)
        finally:
            self.forget_clock()

    def forget_clock(self) -> None:
        """Let go of the plain run."""
        if self._stopwatch is not None:
            self._stopwatch.close()
            self._stopwatch = None

    def settle(self, name: str) -> Settled:
        """Time the plain model, and write down how many steps every run of it makes."""
        config, budget = self.plan.models[name], self.plan.budget
        self._check_data(name)
        place = self.folder.results(Entrant(name, PLAIN)).parent
        place.mkdir(parents=True, exist_ok=True)
        with held(place, f"{name} settled", wait=True):
            if (known := settled(self.plan, self.folder, name)) is not None:
                return known
            timing = self._clock(name).plain()
            whole = max(1, round(length(config) * timing.steps_of_a_unit))
            steps = whole if budget is None else budget.steps_at(timing.seconds)
            about: dict[str, Any] = {
                "budget": budget.text if budget else None,
                "steps": steps,
                "steps_of_a_unit": timing.steps_of_a_unit,
                "seconds_of_a_step": timing.seconds,
                "settings": to_plain(config),
            }
            self.folder.write_model(name, about)
            self.folder.write_timing(Entrant(name, PLAIN), timing)
            return Settled(cut(config, steps, timing.steps_of_a_unit), timing.steps_of_a_unit)

    def _check_data(self, name: str) -> None:
        """Build the data as runs that choose a rate have them: what is wrong is told before anything is timed."""
        if name in self._known_data:
            return
        with _naming_the_option():
            same = self._check_data_of(name, self.plan.held_out)
        if not same and self.plan.held_out and on_all_samples(self.plan, self.folder, name):
            self._check_data_of(name, 0.0)
        self._known_data.add(name)

    def _check_data_of(self, name: str, hold_out: float) -> bool:
        config = self.plan.models[name]
        held_out = replace(config, data=replace(config.data, hold_out=hold_out))
        task = TASKS[config.task](held_out, self.place, share_of(config, self.place.ranks))
        return check_data(self.plan, self.folder, name, task.describe())

    def _clock(self, name: str) -> Stopwatch:
        self._stopwatch = self._stopwatch or Stopwatch(self.plan.models[name], self.place)
        return self._stopwatch

    def _still_refused(self, entrant: Entrant) -> bool:
        """Whether its model refuses it, as it did before; looked at in every call, as other code may allow it."""
        known = self.folder.trouble(entrant) or {}
        if known.get("state") != "refused":
            return False
        reason = refusal(entrant, self.plan.models[entrant.model])
        if reason is None:
            self.folder.forget_trouble(entrant)
        elif reason != known.get("reason"):
            self.folder.write_trouble(entrant, "refused", reason, self.call)
        return reason is not None

    def _carry_out(self, entrant: Entrant, base: Settled) -> None:
        """Keep others out, and write down what goes wrong with a remedy."""
        place = self.folder.runs / entrant.place
        place.mkdir(parents=True, exist_ok=True)
        with held(place, f"{entrant.place} that nobody is carrying out"):
            if is_unable(self.folder.trouble(entrant), self.call):
                return
            if (reason := refusal(entrant, base.config)) is not None:
                self.folder.write_trouble(entrant, "refused", reason, self.call)
                return
            self._check_data(entrant.model)
            try:
                self._train(entrant, base)
            except (HeldError, HoldOutError, OtherResultsError):
                raise
            except Exception as error:
                if entrant.remedy == PLAIN or is_of_the_disk(error) or not self._alive():
                    raise  # no other remedy would fare better
                words = f"{type(error).__name__}: {' '.join(str(error).split())}"
                self.folder.write_trouble(entrant, "failed", words, self.call)
                return
            self.folder.forget_trouble(entrant)

    def _train(self, entrant: Entrant, base: Settled) -> None:
        """Timing, rates, seeds: each is written down before the next begins."""
        plan = self.plan
        if self.folder.timing(entrant) is None:
            first = plan.settings(entrant, base, plan.rates[0], plan.seeds[0])
            clock = self._clock(entrant.model)
            self.folder.write_timing(entrant, clock.plain() if entrant.remedy == PLAIN else clock.beside(first))
        known = 0  # the rates of the grid, then one by one those beyond it, then the seeds
        while not self.late and known < len(wanted := wanted_runs(plan, self.folder, entrant)):
            known = len(wanted)
            check_settings(plan, self.folder, entrant, base)  # also of what nobody knew to be wanted when this began
            with _naming_the_option():
                self._runs(entrant, {name: plan.settings(entrant, base, *which) for name, which in wanted.items()})

    def _runs(self, entrant: Entrant, wanted: Mapping[str, Config]) -> None:
        """Runs beside each other, those that are missing; what came to its end is written down."""
        missing = {run: config for run, config in wanted.items() if self.folder.outcome(entrant, run) is None}
        check_begun(self.folder, entrant, missing)
        minutes = None if self.end is None else max(0.0, (self.end - time.monotonic()) / 60)
        places = {f"{entrant.place}/{run}": config for run, config in missing.items()}
        folders = train_together(places, self.folder.runs, minutes=minutes, tell=self.tell) if places else []
        for (run, config), folder in zip(missing.items(), folders, strict=True):
            if folder.manifest().get("state") in ("finished", "stopped"):
                trained = kept(f"{entrant.model}: {entrant.remedy}", config, folder, len(missing), self.workers)
                # Spectra are as long as all the rest, and stay with the run.
                self.folder.write_outcome(entrant, run, replace(trained, spectra=()))

    def _tidy(self, entrant: Entrant) -> None:
        """Whoever wrote its last result may have been killed before this."""
        for run in outcomes(self.plan, self.folder, entrant):
            self.folder.tidy(entrant, run)

    def _alive(self) -> bool:
        """Whether the device still answers: after some errors a GPU does no more for a process."""
        try:
            if self.place.device.type == "cuda":
                torch.cuda.synchronize(self.place.device)
        except RuntimeError:
            return False
        return True
