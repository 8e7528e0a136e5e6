"""What a monitor is asked for, rules included; a part that is wrong is told of and left out: the training can begin."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias, TypeVar

from unsmooth.errors import UnsmoothError, expected
from unsmooth.functional import BoundMetric, parse_metric
from unsmooth.models import Anatomy
from unsmooth.monitor.reading import Reading
from unsmooth.monitor.sinks import SINKS, Sink
from unsmooth.monitor.trouble import Problem
from unsmooth.numbers import spoken
from unsmooth.presets import Preset
from unsmooth.scanning.calling import TokenChoice
from unsmooth.scanning.condition import Condition
from unsmooth.scanning.plan import EVERY_SITE, check_metrics, site_names, sites_of
from unsmooth.scanning.published import check_alone, check_fits, find_preset


@dataclass(frozen=True)
class Alarm:
    """A rule that holds: where, since when, and by what number."""

    step: int
    rule: str
    layer: int
    value: float
    since: int

    @property
    def text(self) -> str:
        """In one line, without its step.

        >>> Alarm(500, "mean_cosine@last > 0.9", 12, 0.951, 100).text
        'mean_cosine@last > 0.9 holds (0.951 at layer 12, since step 100)'
        """
        since = f", since step {self.since}" if self.since < self.step else ""
        return f"{self.rule} holds ({spoken(self.value)} at layer {self.layer}{since})"


Action: TypeAlias = Literal["warn", "stop"] | Callable[[Alarm], object]


@dataclass
class Rule:
    """What to look out for, and what to do then.

    It holds "for N steps" when every look since a step at least N steps ago met the condition; one look is enough
    without. It is told once, and again only after it has ceased to hold. NaN meets no rule.

    Alike tokens are no failure by themselves: a classifier that reads one token, or their mean, may make all of them
    alike and be right. Let a rule stop only what the loss or the metric says is failing too, such as by a function that
    looks at them.

    Args:
        text: ``METRIC[@LAYER[:SITE]] OP NUMBER [for N steps]``; LAYER is first, last, any or a number.
        then: "warn" in one line, "stop" the training, or a function that is called with the `Alarm` in every process.

    Example:
        >>> from unsmooth.scanning.result import Row
        >>> rule = Rule("mean_cosine@last > 0.9 for 100 steps")
        >>> row = Row(3, "residual", "mean_cosine", 0.95, 0, 0, 0, 1, 1)
        >>> [rule.check(Reading(step, (row,))) is not None for step in (50, 100, 150)]
        [False, False, True]
    """

    text: str
    then: Action = "warn"
    condition: Condition = field(init=False)
    _since: int | None = field(default=None, init=False, repr=False)
    _told: bool = field(default=False, init=False, repr=False)

    def __post_init__(self) -> None:
        self.condition = Condition.parse(self.text, lasting=True)
        if self.then not in ("warn", "stop") and not callable(self.then):
            raise expected('"warn", "stop" or a function to call', repr(self.then), f'Rule({self.text!r}, "stop")')

    @classmethod
    def of(cls, given: str | tuple[str, Action] | Rule) -> Rule:
        """A rule from its text, from text and action, or as it is."""
        if isinstance(given, Rule):
            return given
        if isinstance(given, str):
            return cls(given)
        if isinstance(given, tuple) and len(given) == 2 and isinstance(given[0], str):
            return cls(*given)
        raise expected("a rule as text, or (text, action)", repr(given), '"mean_cosine@last > 0.95 for 500 steps"')

    def check(self, reading: Reading) -> Alarm | None:
        """An alarm where the rule begins to hold with this look."""
        row = self.condition.holds(reading, nan=False)
        if row is None:
            self._since, self._told = None, False
            return None
        self._since = reading.step if self._since is None else self._since
        if self._told or reading.step - self._since < self.condition.steps:
            return None
        self._told = True
        return Alarm(reading.step, self.text, row.layer, row.mean, self._since)


# One of directions and one of energies: the curves that most papers draw, at one scalar a layer.
DEFAULT_METRICS = ("mean_cosine", "token_diversity")

DEFAULT_SITE = "residual"

T = TypeVar("T")
U = TypeVar("U")
Refuse = Callable[[Exception, str], None]
"""Called with what is wrong and what is left out because of it, such as "the metric 'men_cosine'"."""
GivenRule = str | tuple[str, Action] | Rule


@dataclass
class Settings:
    """Checked: what to measure where, what to look out for, and where to write."""

    metrics: list[BoundMetric]
    sites: tuple[str, ...]
    rules: list[Rule]
    sinks: list[Sink]
    tokens: TokenChoice = "content"
    preset: Preset | None = None


def check(
    metrics: Sequence[str] | None,
    sites: Sequence[str],
    tokens: TokenChoice,
    preset: str | Preset | None,
    rules: Sequence[GivenRule],
    sinks: Sequence[str | Sink],
    refuse: Refuse,
) -> Settings:
    """Settings as given, without what `refuse` was called for.

    A metric that only a rule names is measured too.
    """
    rules = _listed("rules", (rules,) if isinstance(rules, str | Rule) else rules, refuse)
    sinks = _listed("sinks", (sinks,) if isinstance(sinks, str | Sink) else sinks, refuse)
    alone = {"metrics": metrics is None, "sites": sites == (DEFAULT_SITE,), "tokens": tokens == "content"}
    presets = [] if preset is None else _each("preset", [preset], lambda one: _preset(one, alone), refuse)
    metrics = (metrics,) if isinstance(metrics, str) else metrics
    names: Sequence[str] = DEFAULT_METRICS if metrics is None else _listed("metrics", metrics, refuse)
    for chosen in presets:
        names, sites, tokens = chosen.metrics, chosen.sites, chosen.tokens
    known = _each("metric", names, _metric, refuse) or [parse_metric(DEFAULT_METRICS[0])]
    found = _each("rule", rules, _rule, refuse)
    return Settings(
        metrics=_with_rules(known, found),
        sites=next(iter(_each("sites", [sites], site_names, refuse)), (DEFAULT_SITE,)),
        rules=found,
        sinks=_each("sink", sinks, _sink, refuse),
        tokens=tokens,
        preset=next(iter(presets), None),
    )


def _with_rules(metrics: Sequence[BoundMetric], rules: Sequence[Rule]) -> list[BoundMetric]:
    also = [_metric(rule.condition.metric) for rule in rules]
    return list({metric.name: metric for metric in [*metrics, *also]}.values())


def fit(settings: Settings, stacks: Sequence[Anatomy], refuse: Refuse) -> Settings:
    """Settings for a model: without sites that it does not have, and rules about such; `refuse` is called for each.

    A site that only a rule names is measured too, and in place of a preset that does not fit the usual.
    """
    presets = [] if settings.preset is None else [settings.preset]
    if presets and not _each("preset", presets, lambda one: _fitting(one, stacks), refuse):
        usual = _with_rules([parse_metric(name) for name in DEFAULT_METRICS], settings.rules)
        settings = replace(settings, metrics=usual, sites=(DEFAULT_SITE,), tokens="content", preset=None)
    known = _each("site", settings.sites, lambda site: sites_of(stacks, (site,)), refuse) or [(DEFAULT_SITE,)]
    rules = _each("rule", settings.rules, lambda rule: _about(rule, stacks), refuse)
    sites = dict.fromkeys(site for sites in known for site in sites)
    return replace(settings, sites=(*sites | dict.fromkeys(rule.condition.site for rule in rules),), rules=rules)


def without(settings: Settings, problem: Problem) -> Settings | None:
    """Settings without the site or metric that is to blame, and the rules about it; None where nothing would be left.

    The usual is measured where nothing else was asked for.
    """
    site, metric = problem.site, problem.metric
    usual = parse_metric(DEFAULT_METRICS[0])
    left = replace(
        settings,
        metrics=[one for one in settings.metrics if one.name != metric] or [usual],
        sites=tuple(one for one in settings.sites if one != site) or (DEFAULT_SITE,),
        rules=[one for one in settings.rules if one.condition.site != site and one.condition.metric != metric],
    )
    return None if site in left.sites or metric in {one.name for one in left.metrics} else left


def check_every(every: int) -> int:
    """A number of steps."""
    if isinstance(every, bool) or not isinstance(every, int) or every < 1:
        raise expected("every as a number of steps from 1 on", repr(every), "every=50")
    return every


def check_sequences(sequences: int | None) -> int | None:
    """How many sequences of a batch to look at."""
    if sequences is not None and (isinstance(sequences, bool) or not isinstance(sequences, int) or sequences < 1):
        raise expected("sequences as a number from 1 on, or None", repr(sequences), "sequences=8")
    return sequences


def _listed(what: str, given: Any, refuse: Refuse) -> list[Any]:
    """What was given; nothing where that is no list."""
    if isinstance(given, Iterable):
        return list(given)
    refuse(expected(f"{what} in a list", repr(given), f"{what}=[…]"), f"the {what} {given!r}")
    return []


def _metric(name: str) -> BoundMetric:
    found = check_metrics([name])[0]
    if found.metric.reads not in ("tokens", "pair", "grid"):
        got = f"{found.name!r}, which reads {found.metric.reads}"
        raise expected("a metric of the tokens of each sequence for a monitor", got, "unsmooth.scan now and then")
    return found


def _preset(given: str | Preset, alone: Mapping[str, bool]) -> Preset:
    found = find_preset(given)
    check_alone(found, **alone)
    if found.minus is not None:
        got = f"preset {found.name!r}, the difference of two"
        raise expected("one metric of the tokens of each sequence for a monitor", got, "unsmooth.scan now and then")
    for name in found.metrics:
        _metric(name)
    return found


def _fitting(preset: Preset, stacks: Sequence[Anatomy]) -> Preset:
    """The preset, if it means something for this model."""
    check_fits(preset, stacks)
    sites_of(stacks, preset.sites)
    return preset


def _rule(given: GivenRule) -> Rule:
    found = Rule.of(given)
    _metric(found.condition.metric)
    return found


def _about(rule: Rule, stacks: Sequence[Anatomy]) -> Rule:
    """The rule, if the model has its site."""
    if (site := rule.condition.site) == EVERY_SITE:  # a rule is about one
        stacks[0].check_sites((site,))
    sites_of(stacks, (site,))
    return rule


def _sink(given: str | Sink) -> Sink:
    if not isinstance(given, str | Sink):
        raise expected("a sink, or the name of one", repr(given), 'sinks=["jsonl"]')
    return given if isinstance(given, Sink) else SINKS[given]()


def _each(kind: str, given: Sequence[T], make: Callable[[T], U], refuse: Refuse) -> list[U]:
    made = []
    for one in given:
        try:
            made.append(make(one))
        except UnsmoothError as error:
            refuse(error, f"the {kind} {_called(kind, one)!r}")
    return made


def _called(kind: str, given: object) -> object:
    """What somebody called something that was not understood: a rule by its text alone."""
    if isinstance(given, Rule | Preset):
        return given.text if isinstance(given, Rule) else given.name
    return given[0] if kind == "rule" and isinstance(given, tuple) and given else given
