"""What an arena is to find out: which models, remedies, learning rates and seeds, at which budget."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from unsmooth.errors import UnsmoothError, expected, unknown_name
from unsmooth.evidence.rates import PROBE_SEED
from unsmooth.models.randomise import private_randomness
from unsmooth.networks.saving import build
from unsmooth.remedies.base import option_defaults
from unsmooth.remedies.checking import checked_options
from unsmooth.remedies.listing import find_remedy
from unsmooth.remedies.specification import Wish, parse_remedies
from unsmooth.remedies.stack import find_changeable
from unsmooth.spec import read_settings, split_at_commas
from unsmooth.stopping import seconds_in
from unsmooth.training import TASKS, Config, override


@dataclass(frozen=True)
class Budget:
    """Of a single run, in one of two ways.

    Args:
        text: As it was given.
        steps: So many; or
        seconds: as many steps as the plain model makes in this time, alone on its device, looking and saving not
            counted. Remedied models make the same number of steps, however long they take.
    """

    text: str
    steps: int | None = None
    seconds: float | None = None

    @classmethod
    def read(cls, text: str) -> Budget:
        """A time such as "5m", "90s" or "1.5h", or "2000steps".

        >>> Budget.read("1.5h").seconds, Budget.read("2000steps").steps
        (5400.0, 2000)
        """
        steps = text.strip().lower().removesuffix("steps").strip()
        if steps.isdecimal() and steps != text.strip() and int(steps):
            return cls(text, steps=int(steps))
        if not (seconds := seconds_in(text)):
            raise expected("a budget of a run, as a time or in steps", repr(text), "--budget 5m, or --budget 2000steps")
        return cls(text, seconds=seconds)

    @property
    def meaning(self) -> tuple[int | None, float | None]:
        """Without how it was written.

        >>> Budget.read("1m").meaning == Budget.read("60.0s").meaning
        True
        """
        return self.steps, self.seconds

    def steps_at(self, seconds_of_a_step: float) -> int:
        """How many steps it is for a plain model whose step takes so long.

        >>> Budget.read("5m").steps_at(0.25), Budget.read("7steps").steps_at(0.25)
        (1200, 7)
        """
        if self.steps is not None:
            return self.steps
        assert self.seconds is not None
        return max(1, math.floor(self.seconds / seconds_of_a_step))


@dataclass(frozen=True)
class Settled:
    """What all runs of a model have in common.

    Args:
        config: Its settings, cut to the budget.
        steps_of_a_unit: Steps in what the run's length is given in: those of an epoch of all samples, or 1.
    """

    config: Config
    steps_of_a_unit: float = 1.0

    def in_steps(self) -> Config:
        """The same settings with every length in steps: where there are fewer samples, an epoch has fewer of them.

        >>> from unsmooth.training import recipe
        >>> found = Settled(cut(recipe("vit_cifar100"), 5208, 520.8), 520.8).in_steps()
        >>> found.epochs, found.steps, round(found.schedule.warmup, 1), found.checkpoint_every
        (None, 5208, 86.8, 5208.0)
        """
        unit, config = self.steps_of_a_unit, self.config
        if config.steps is not None:
            return config
        return replace(
            config,
            epochs=None,
            steps=max(1, round(length(config) * unit)),
            schedule=replace(config.schedule, warmup=config.schedule.warmup * unit),
            measuring=replace(
                config.measuring,
                every=config.measuring.every * unit,
                at=tuple(moment * unit for moment in config.measuring.at),
            ),
            evaluate_every=config.evaluate_every * unit,
            checkpoint_every=config.checkpoint_every * unit,
        )


def length(config: Config) -> float:
    """Of a run, in its own unit: epochs, or steps."""
    return float(config.steps if config.steps is not None else config.epochs or 0.0)


def cut(config: Config, steps: int, steps_of_a_unit: float) -> Config:
    """The same settings for another number of steps; the warm-up keeps its share of the run.

    Args:
        config: From a recipe.
        steps: How many.
        steps_of_a_unit: Steps in what the run's length is given in: those of an epoch, or 1.

    >>> from unsmooth.training import recipe
    >>> short = cut(recipe("vit_cifar100"), 5208, 520.8)
    >>> short.epochs, round(short.schedule.warmup, 3)  # 5 of 300 epochs, so 1 of 60
    (10.0, 0.167)
    """
    share = steps / steps_of_a_unit / length(config)
    schedule = replace(config.schedule, warmup=config.schedule.warmup * share)
    if config.steps is not None:
        return replace(config, steps=steps, schedule=schedule)
    return replace(config, epochs=steps / steps_of_a_unit, schedule=schedule)


PLAIN = "plain"
_LENGTHS = ("steps", "epochs")
_OWN = {
    **dict.fromkeys(("lr", "optimiser.lr"), "--rates 1e-4,1e-3: each model has its best"),
    "seed": "--seeds 3",
    **dict.fromkeys(_LENGTHS, "no --budget"),
}
"""Settings that are not those of a model, and what to give in their place; lengths where there is a budget."""

_STEPS_OF_RATES = (1 / 3, 1.0, 3.0)


@dataclass(frozen=True)
class Entrant:
    """A remedy on a model.

    Args:
        model: Name of the model in the plan.
        remedy: As `unsmooth.apply` takes it, or "plain".
    """

    model: str
    remedy: str

    @property
    def place(self) -> str:
        """Its folder, below the arena's.

        >>> Entrant("depth=12 norm=pre", "sharpen(basis='orthogonal')").place
        'depth-12-norm-pre/sharpen-basis-orthogonal'
        """
        return f"{slug(self.model)}/{slug(self.remedy)}"


@dataclass(frozen=True)
class Plan:
    """Everything that decides the numbers of an arena.

    Args:
        models: Name to settings, which differ in the axes of a grid; one where there is none.
        remedies: "plain" first, then the others, each as `unsmooth.apply` takes it.
        rates: Learning rates; each remedy on each model is scored at its own best. A single one is taken as it is.
        widen: How many more rates, each as far beyond an end of the grid as that is from its neighbour, are tried one
            by one for whom the best one lies at that end.
        seeds: Seeds of scored runs; the search for a rate uses `probe_seed`.
        budget: Length of a run; None as the settings have it.
        score: A metric of the task's evaluation.
        probe: How long a run that chooses a rate is, as a share of the budget.
        hold_out: Share of the training samples that such a run does not learn from and is evaluated on, in place of
            the test set; 0 evaluates it on the test set.
    """

    models: Mapping[str, Config]
    remedies: tuple[str, ...]
    rates: tuple[float, ...]
    seeds: tuple[int, ...]
    budget: Budget | None
    score: str
    probe: float = 1.0
    hold_out: float = 0.1
    widen: int = 0

    @property
    def entrants(self) -> list[Entrant]:
        """Model by model, the plain one first."""
        return [entrant for model in self.models for entrant in self.on(model)]

    def on(self, model: str) -> list[Entrant]:
        """The entrants on one model, the plain one first."""
        return [Entrant(model, remedy) for remedy in self.remedies]

    @property
    def runs_of_each(self) -> tuple[int, int, int]:
        """Of one entrant: runs that choose its rate, those beyond the grid that may follow, and scored ones.

        >>> from unsmooth.training import recipe
        >>> plan_arena(recipe("vit_cifar100"), ["deescalate"]).runs_of_each
        (3, 2, 3)
        """
        choosing = len(self.rates) > 1
        return len(self.rates) if choosing else 0, self.widen if choosing else 0, len(self.seeds)

    @property
    def probe_seed(self) -> int:
        """Of runs that choose a learning rate; never scored."""
        return self.seeds[0] + PROBE_SEED

    @property
    def more(self) -> bool:
        """Whether more of the score is better."""
        return TASKS[next(iter(self.models.values())).task].better[self.score]

    @property
    def held_out(self) -> float:
        """The hold-out, where rates are chosen at all."""
        return self.hold_out if len(self.rates) > 1 else 0.0

    def settings(self, entrant: Entrant, settled: Settled, rate: float, seed: int) -> Config:
        """One run.

        Args:
            entrant: Which.
            settled: The model's settings, cut to the budget.
            rate: Learning rate.
            seed: One of `seeds`, or `probe_seed`: such a run measures no tokens, and may be shorter and hold samples
                out. It makes as many steps with fewer samples.
        """
        own = () if entrant.remedy == PLAIN else (entrant.remedy,)
        probes = seed == self.probe_seed
        share, held_out = (self.probe, self.held_out) if probes else (1.0, 0.0)
        base = settled.in_steps() if held_out else settled.config
        run = length(base) * share
        return replace(
            base,
            seed=seed,
            remedies=(*base.remedies, *own),
            data=replace(base.data, hold_out=held_out),
            optimiser=replace(base.optimiser, lr=rate),
            schedule=replace(base.schedule, warmup=base.schedule.warmup * share),
            epochs=None if base.epochs is None else run,
            steps=None if base.steps is None else max(1, round(run)),
            evaluate_every=run,
            measuring=replace(
                base.measuring,
                every=0.0,
                at=(),
                sequences=0 if probes else base.measuring.sequences,
                metrics=("mean_cosine",),
            ),
        )


def plan_arena(
    base: Config,
    remedies: Sequence[str],
    *,
    grid: Sequence[str] = (),
    rates: Sequence[float] = (),
    seeds: int = 3,
    budget: Budget | None = None,
    score: str | None = None,
    probe: float = 1.0,
    hold_out: float = 0.1,
    widen: int = 2,
) -> Plan:
    """Check what was asked for, before anything is built.

    Args:
        base: From a recipe, such as ``unsmooth.training.recipe("vit_cifar100")``.
        remedies: As `unsmooth.apply` takes them; the plain model always takes part.
        grid: Axes such as "depth=12,24": every combination is a model, compared with its own plain form.
        rates: Learning rates; by default a third of the recipe's, its own, and three times that.
        seeds: How many, from that of `base` on.
        budget: Length of a run; None as the recipe has it.
        score: A metric of the task's evaluation; by default the first that is not the loss.
        probe: Length of the runs that choose a rate, as a share of the budget.
        hold_out: Share of the training samples that these runs are evaluated on and do not learn from; 0 evaluates
            them on the test set. Scored runs learn from all, and are evaluated on the test set.
        widen: How many more rates may be tried beyond an end of the grid at which the best one lies.
    """
    if not 1 <= seeds <= PROBE_SEED:
        raise expected(f"1 to {PROBE_SEED} seeds", seeds, "--seeds 3")
    if not 0 < probe <= 1:
        raise expected("a share of the budget above 0 and up to 1", probe, "--probe 0.5")
    if widen < 0:
        raise expected("0 or more rates beyond the grid", widen, "--widen 2")
    grid_of_rates = tuple(rates) or tuple(float(f"{base.optimiser.lr * step:.3g}") for step in _STEPS_OF_RATES)
    # Runs are called by six digits of their rate.
    if not all(0 < rate < math.inf for rate in grid_of_rates) or _some_alike(f"{rate:g}" for rate in grid_of_rates):
        what = "finite learning rates above 0 that differ in their first six digits"
        raise expected(what, list(grid_of_rates), "--rates 1e-4,3e-4,1e-3")
    better = TASKS[base.task].better
    chosen = score or next((name for name in better if name != "loss"), "loss")
    if chosen not in better:
        raise unknown_name("score", chosen, better)
    plan = Plan(
        models=models_of(base, grid),
        remedies=(PLAIN, *_checked(remedies)),
        rates=tuple(sorted(grid_of_rates)),
        seeds=tuple(range(base.seed, base.seed + seeds)),
        budget=budget,
        score=chosen,
        probe=probe,
        hold_out=hold_out,
        widen=widen,
    )
    _check_hold_out(plan, base.task)
    _check_grid(plan, grid)
    return plan


def _check_grid(plan: Plan, grid: Sequence[str]) -> None:
    """Refuse axes that the arena sets itself, and models that are the same: their names would promise a difference."""
    for name in _read_axes(grid):
        if name in _OWN and (plan.budget is not None or name not in _LENGTHS):
            raise expected("axes of the grid that an arena does not set itself", repr(name), _OWN[name])
    rate, seed = plan.rates[0], plan.seeds[0]
    runs = {
        name: plan.settings(Entrant(name, PLAIN), Settled(config), rate, seed) for name, config in plan.models.items()
    }
    for one, other in itertools.combinations(runs, 2):
        if runs[one] == runs[other]:
            raise expected("models that differ", f"{one!r} and {other!r}, whose runs are the same", "one of them")


def _some_alike(names: Iterable[str]) -> bool:
    found = list(names)
    return len(set(found)) < len(found)


def _check_hold_out(plan: Plan, task: str) -> None:
    if not 0 <= plan.hold_out < 1:
        raise expected("a share of the training samples from 0 to below 1", plan.hold_out, "--hold-out 0.1")
    if plan.held_out and not TASKS[task].holds_out:
        raise expected("a task that can hold samples out, to choose rates by", repr(task), "--hold-out 0: the test set")
    if any(config.data.hold_out for config in plan.models.values()):
        hint = "--hold-out, which runs that choose a rate have"
        raise expected("scored runs that are evaluated on the test set", "data.hold_out above 0", hint)


def models_of(base: Config, axes: Sequence[str]) -> dict[str, Config]:
    """Every combination of the axes of a grid, by name.

    >>> from unsmooth.training import recipe
    >>> found = models_of(recipe("vit_cifar100"), ["depth=12,24", "norm=post"])
    >>> {name: config.network.depth for name, config in found.items()}
    {'depth=12 norm=post': 12, 'depth=24 norm=post': 24}
    """
    read = _read_axes(axes)
    found: dict[str, Config] = {}
    for values in itertools.product(*read.values()):
        changes: dict[str, Any] = dict(zip(read, values, strict=True))
        called = " ".join(f"{name}={value}" for name, value in changes.items()) or base.recipe
        found[called] = override(base, changes)
    if _some_alike(map(slug, found)):
        raise expected("models that differ by name", ", ".join(found), "other values in --grid")
    return found


def _read_axes(texts: Sequence[str]) -> dict[str, tuple[str, ...]]:
    form, hint = "--grid KEY=VALUE,VALUE", "--grid depth=12,24"
    found = {name: split_at_commas(values) for name, values in read_settings(texts, form, hint).items()}
    for name, values in found.items():
        if not values or _some_alike(values):
            raise expected(form, repr(f"{name}={','.join(values)}"), hint)
    return found


def _checked(remedies: Sequence[str]) -> tuple[str, ...]:
    """As remedies write themselves, so that one that is spelt in two ways is known to be one."""
    found: dict[str, str] = {}
    for text in remedies:
        if text == PLAIN:
            continue
        written = " + ".join(map(str, parse_remedies(text)))
        if written in found.values():
            raise expected("remedies that differ", f"{text!r} twice", "each of them once")
        if (other := found.setdefault(slug(written), written)) != written:
            got = f"{other!r} and {written!r}, both called {slug(written)}"
            raise expected("remedies whose folders differ", got, "an --out for each")
    if not found:
        raise expected("at least one remedy beside the plain model", "none", "--remedies deescalate,sharpen")
    return tuple(found.values())


def slug(text: str) -> str:
    """A name for a folder; the sign of a number is spelt out, as a hyphen there stands for anything else.

    >>> slug("attnscale(omega=0.5)"), slug("attnscale(omega=-0.5)"), slug("neutreno(lam=1e-05)")
    ('attnscale-omega-0.5', 'attnscale-omega-minus0.5', 'neutreno-lam-1e-05')
    """
    signed = re.sub(r"(?<![A-Za-z0-9._])-(?=\.?\d)", "minus", text)
    return re.sub(r"[^A-Za-z0-9._]+", "-", signed).strip("-.")


def refusal(entrant: Entrant, config: Config) -> str | None:
    """Why a remedy cannot be on this model; None where it can. The model is built for it, on the CPU."""
    from unsmooth.networks.saving import build
    from unsmooth.remedies.specification import apply_wishes

    if entrant.remedy == PLAIN:
        return None
    model = build(config.network, config.seed)
    try:
        for text in (*config.remedies, entrant.remedy):
            apply_wishes(model, parse_remedies(text), seed=config.seed)
    except UnsmoothError as error:
        return " ".join(str(error).split())
    return None


def check_possible(plan: Plan) -> None:
    """Refuse an arena in which no model can have any of the remedies: training the plain ones would compare nothing."""
    reasons: dict[str, str] = {}
    for entrant in plan.entrants:
        if entrant.remedy == PLAIN:
            continue
        if (reason := refusal(entrant, plan.models[entrant.model])) is None:
            return
        reasons.setdefault(entrant.remedy, reason)
    told = "; ".join(f"{remedy}: {reason}" for remedy, reason in reasons.items())
    raise expected("a remedy that a model of this arena can have", f"none ({told})", "`unsmooth ls remedies`")


def check_options(plan: Plan) -> None:
    """Refuse options of a remedy that are wrong on every model, before anything is trained beside it."""
    wishes = {remedy: parse_remedies(remedy) for remedy in plan.remedies if remedy != PLAIN}
    slips: dict[str, list[UnsmoothError | None]] = {remedy: [] for remedy in wishes}
    for config in plan.models.values():
        with private_randomness(config.seed):
            model = build(config.network, config.seed)
            for remedy, wanted in wishes.items():
                slips[remedy].append(next((slip for wish in wanted if (slip := _slip(wish, model)) is not None), None))
    for remedy, found in slips.items():
        if found[0] is not None and None not in found:
            raise UnsmoothError(f"In {remedy}: {found[0]}")


def _slip(wish: Wish, model: nn.Module) -> UnsmoothError | None:
    """What is wrong with the options themselves: the remedy's own defaults can be built here, and these cannot."""
    kind = find_remedy(wish.name)
    try:
        options = checked_options(kind, wish.options)
        stacks, _ = find_changeable(model, None, wish.stack)
        sites = [site for one in stacks for site in one.choose(wish.layers)]
    except UnsmoothError as error:
        return error
    # Building an edit checks its options and touches nothing. Of a block that it does not fit nobody can say more.
    try:
        kind(sites[0], **option_defaults(kind))
    except Exception:
        return None
    try:
        kind(sites[0], **options)
    except UnsmoothError as error:
        return error
    return None
