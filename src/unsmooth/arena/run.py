"""Carrying an arena out: what is there is kept, what was begun is taken up, what is missing is handed out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

import torch

from unsmooth.arena.plan import PLAIN, Budget, Entrant, Plan, Settled, cut, length, refusal
from unsmooth.arena.results import (
    ArenaFolder,
    OtherResultsError,
    check_begun,
    check_data,
    check_one_data,
    check_settings,
    chosen,
    complete,
    is_unable,
    on_all_samples,
    other_results,
    outcomes,
    wanted_runs,
)
from unsmooth.evidence.records import Trained, differing_settings, kept
from unsmooth.executing import Crew, Driver, HeldError, Job, forecast
from unsmooth.files import is_of_the_disk
from unsmooth.stopping import Deadline
from unsmooth.training import TASKS, Config, carry_on
from unsmooth.training.data.hold_out import HoldOutError
from unsmooth.training.driving import Tell, side_by_side_on
from unsmooth.training.place import Place, take_place
from unsmooth.training.plain import to_plain
from unsmooth.training.stopwatch import Stopwatch, Timing
from unsmooth.training.timing import share_of

T = TypeVar("T")


@dataclass(frozen=True)
class Trouble:
    """Why an entrant has no result: "refused" by its model, or "failed"; and the reason."""

    state: str
    reason: str


def carry_out_arena(
    plan: Plan,
    folder: ArenaFolder,
    *,
    crew: Crew | None = None,
    deadline: Deadline | None = None,
    tell: Tell = lambda _: None,
    announce: Callable[[str], object] = lambda _: None,
    call: str = "",
) -> float:
    """Train everything that an arena wants: of each entrant first its rates, then its seeds.

    A remedy that a model refuses, or that fails for any other reason than its loss, is written down with the reason
    and tried again by another call. What goes wrong with a plain model, or with the disk, is raised.

    Args:
        plan: What is wanted.
        folder: Where everything goes; no other command works there meanwhile.
        crew: Who trains; this process where None. Several processes share the device: one's steps fill the pauses in
            which another one compiles or starts.
        deadline: Save and stop then; call it again to go on.
        tell: Called with every `Progress` of this process.
        announce: Called with how many runs there are and about how long they take, before the first of them.
        call: Names this call: what it found to be impossible it does not try twice.

    Returns:
        Seconds that all jobs took together.
    """
    who = crew or Crew()
    with Driver(folder.path, who, deadline or Deadline(), tell) as driver:
        work = _Arena(plan, folder, call, who)
        check_results(plan, folder)
        work.look_again()
        # How long a step takes is found out while nothing else is on the device.
        driver.hand_out(work.settling, at_once=1)
        if said := work.forecast():
            announce(said)
        driver.hand_out(work.training)
        return driver.seconds


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


@dataclass
class _Arena:
    """What is to be done next, and where it goes."""

    plan: Plan
    folder: ArenaFolder
    call: str
    crew: Crew
    _left: list[Entrant] = field(default_factory=list, init=False)

    def look_again(self) -> None:
        """Find out who is not done, nor still refused: that is looked at in every call, as other code may allow it."""
        for entrant in self.plan.entrants:
            if complete(self.plan, self.folder, entrant):
                # Whoever wrote its last result may have been killed before this.
                for run in outcomes(self.plan, self.folder, entrant):
                    self.folder.tidy(entrant, run)
                continue
            known = self.folder.trouble(entrant) or {}
            if known.get("state") == "refused":
                reason = refusal(entrant, self.plan.models[entrant.model])
                if reason is not None:
                    if reason != known.get("reason"):
                        self._write(entrant, Trouble("refused", reason))
                    continue
                self.folder.forget_trouble(entrant)
            self._left.append(entrant)

    def settling(self) -> Iterator[Job]:
        """The plain step of every model on which something is left, timed; and its data looked at."""
        for name in dict.fromkeys(entrant.model for entrant in self._left):
            work = partial(_settle, self.plan, self.folder, name)
            yield Job(f"settle {name}", work, partial(self._write_settled, name))

    def training(self) -> Iterator[Job]:
        """Of every entrant that is not done: its timing, then rates, then seeds."""
        plan, folder = self.plan, self.folder
        at_once = side_by_side_on(next(iter(plan.models.values())).engine.device)
        for entrant in list(self._left):
            if is_unable(folder.trouble(entrant), self.call) or complete(plan, folder, entrant):
                self._left.remove(entrant)
                continue
            if (base := settled(plan, folder, entrant.model)) is None:
                continue
            if folder.timing(entrant) is None:
                first = plan.settings(entrant, base, plan.rates[0], plan.seeds[0])
                work = partial(_time, entrant, plan.models[entrant.model], first)
                yield Job(f"time {entrant.place}", work, partial(self._write, entrant))
                continue
            check_settings(plan, folder, entrant, base)  # also of what nobody knew to be wanted when this began
            wanted = wanted_runs(plan, folder, entrant)
            configs = {run: plan.settings(entrant, base, *which) for run, which in wanted.items()}
            missing = {run: config for run, config in configs.items() if folder.outcome(entrant, run) is None}
            check_begun(folder, entrant, missing)
            runs = list(configs)
            for start in range(0, len(runs), at_once):
                # Groups of what is wanted, not of what is missing: one that is under way stays the same.
                some = {run: missing[run] for run in runs[start : start + at_once] if run in missing}
                if some:
                    train = partial(_train, entrant, some, folder, self.crew.processes)
                    yield Job(f"{entrant.place}: {', '.join(some)}", train, partial(self._write, entrant))

    def forecast(self) -> str:
        """How much is left; empty where nothing is."""
        plan, folder, runs, seconds = self.plan, self.folder, 0, 0.0
        for entrant in self._left:
            known, timing = folder.model(entrant.model), folder.timing(entrant)
            wanted = wanted_runs(plan, folder, entrant)
            missing = [which for run, which in wanted.items() if folder.outcome(entrant, run) is None]
            probes = sum(seed == plan.probe_seed for _, seed in missing)
            scored = len(missing) - probes + (len(plan.seeds) if chosen(plan, folder, entrant) is None else 0)
            runs += probes + scored
            if known is not None:
                step = float(known["seconds_of_a_step"]) * (timing.ratio if timing else 1.0)
                seconds += int(known["steps"]) * step * (probes * plan.probe + scored)
        more = any(chosen(plan, folder, entrant) is None for entrant in self._left)
        return forecast(runs, seconds, self.crew, at_least=more and plan.widen > 0) if seconds else ""

    def _write_settled(self, name: str, timing: Timing | None) -> None:
        """How many steps every run of a model makes."""
        if timing is None:
            return
        config, budget = self.plan.models[name], self.plan.budget
        whole = max(1, round(length(config) * timing.steps_of_a_unit))
        about: dict[str, Any] = {
            "budget": budget.text if budget else None,
            "steps": whole if budget is None else budget.steps_at(timing.seconds),
            "steps_of_a_unit": timing.steps_of_a_unit,
            "seconds_of_a_step": timing.seconds,
            "settings": to_plain(config),
        }
        self.folder.write_model(name, about)
        self.folder.write_timing(Entrant(name, PLAIN), timing)

    def _write(self, entrant: Entrant, found: Timing | Mapping[str, Trained] | Trouble) -> None:
        if isinstance(found, Trouble):
            self.folder.write_trouble(entrant, found.state, found.reason, self.call)
        elif isinstance(found, Timing):
            self.folder.write_timing(entrant, found)
        else:
            for run, trained in found.items():
                self.folder.write_outcome(entrant, run, trained)
            if not is_unable(self.folder.trouble(entrant), self.call):
                self.folder.forget_trouble(entrant)


def _settle(plan: Plan, folder: ArenaFolder, name: str, deadline: Deadline, tell: Tell) -> Timing | None:
    """What a step of a plain model takes; None where that is known. What is wrong with its data is told before."""
    config = plan.models[name]
    with take_place(config.engine.device) as place:
        try:
            # As runs that choose a rate have them.
            same = _check_data(plan, folder, name, plan.held_out, place)
            if not same and plan.held_out and on_all_samples(plan, folder, name):
                _check_data(plan, folder, name, 0.0, place)
        except HoldOutError as error:  # which does not know what the option is called here
            raise HoldOutError(f"{error} In an arena: another --hold-out, or --hold-out 0.") from None
        if settled(plan, folder, name) is not None:
            return None
        with Stopwatch(config, place) as clock:
            return clock.plain()


def _check_data(plan: Plan, folder: ArenaFolder, name: str, hold_out: float, place: Place) -> bool:
    config = plan.models[name]
    held_out = replace(config, data=replace(config.data, hold_out=hold_out))
    task = TASKS[config.task](held_out, place, share_of(config, place.ranks))
    return check_data(plan, folder, name, task.describe())


def _time(entrant: Entrant, plain: Config, config: Config, deadline: Deadline, tell: Tell) -> Timing | Trouble:
    """What a step of an entrant costs beside the plain one, or why there is none."""

    def timed() -> Timing:
        with take_place(plain.engine.device) as place, Stopwatch(plain, place) as clock:
            return clock.plain() if entrant.remedy == PLAIN else clock.beside(config)

    if (reason := refusal(entrant, plain)) is not None:
        return Trouble("refused", reason)
    return _tried(entrant, timed)


def _train(
    entrant: Entrant, configs: Mapping[str, Config], folder: ArenaFolder, sharing: int, deadline: Deadline, tell: Tell
) -> dict[str, Trained] | Trouble:
    """Runs beside each other; those that came to their end, or why there is none."""

    def trained() -> dict[str, Trained]:
        places = {f"{entrant.place}/{run}": config for run, config in configs.items()}
        found = {}
        for run, one in zip(configs, carry_on(places, folder.runs, deadline=deadline, tell=tell), strict=True):
            if one.manifest().get("state") in ("finished", "stopped"):
                about = kept(f"{entrant.model}: {entrant.remedy}", configs[run], one, len(configs), sharing)
                # Spectra are as long as all the rest, and stay with the run.
                found[run] = replace(about, spectra=())
        return found

    return _tried(entrant, trained)


def _tried(entrant: Entrant, do: Callable[[], T]) -> T | Trouble:
    """What goes wrong with a remedy is an outcome; what would go wrong with others too is raised."""
    try:
        return do()
    except (HeldError, HoldOutError, OtherResultsError):
        raise
    except Exception as error:
        if entrant.remedy == PLAIN or is_of_the_disk(error) or not _alive():
            raise  # no other remedy would fare better
        return Trouble("failed", f"{type(error).__name__}: {' '.join(str(error).split())}")


def _alive() -> bool:
    """Whether the device still answers: after some errors a GPU does no more for a process."""
    try:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
    except RuntimeError:
        return False
    return True
