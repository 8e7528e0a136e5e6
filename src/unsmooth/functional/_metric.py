"""What a metric declares about itself, and the table of all metrics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, Literal, ParamSpec, TypeVar, get_args

import torch
from torch import Tensor

from unsmooth.errors import expected
from unsmooth.functional._profile import LayerPairs, Profile
from unsmooth.registry import Registry
from unsmooth.spec import Option, Spec, checked, options_of, read, write_options

P = ParamSpec("P")
R = TypeVar("R")

Reads = Literal["tokens", "pair", "grid", "attention", "words", "sequences"]
"""The first four give one value per sequence: of its tokens; of its tokens in two layers; of its tokens on the grid of
an image; of its attention maps. The last two look across sequences: at the same word in several, which gives one value
per word, and at tokens of different ones, which gives one value in all."""
UNITS: Mapping[str, str] = {"words": "word", "sequences": "pair of sequences"}
"""What the values of a metric are of, by what it reads, where it is not a sequence."""
Invariance = Literal["permutation", "rotation", "scale", "token_scale", "translation", "reflection"]
"""permutation of tokens; orthogonal change of features; x → c·x, c > 0; x_i → c_i·x_i, c_i > 0;
x_i → x_i + v for one v; x → −x."""


@dataclass(frozen=True)
class Metric:
    """A metric and what it declares: enough to print, test and explain it without reading its code."""

    name: str
    function: Callable[..., Tensor]
    definition: str
    paper: str
    cost: str
    chance: Callable[[float, int], float] | None
    chance_note: str
    degenerate: str
    reads: Reads = "tokens"
    default: bool = False
    differentiable: bool = True
    rises_when_alike: bool | None = None
    invariances: frozenset[Invariance] = frozenset()
    profile: Profile | LayerPairs | None = None

    @property
    def options(self) -> Mapping[str, Option]:
        """Its options, with their defaults and what they may be."""
        return options_of(self.function)

    @property
    def unit(self) -> str:
        """What one value is of: "sequence" for most."""
        return UNITS.get(self.reads, "sequence")


# Functions by the declaration above them: an entry point names the function.
_DECLARED: dict[Callable[..., Tensor], Metric] = {}


def _accept(found: Any) -> tuple[str, Metric]:
    """What an entry point may name: a function with `metric` above it."""
    declared = _DECLARED.get(found) if callable(found) else None
    if declared is None:
        raise expected("a function with @unsmooth.functional.metric(…) above it", repr(found), "the function itself")
    if declared.default:
        # An installed package must not change what a scan measures unasked.
        raise expected(
            f"a plugin's metric only where it is asked for, as {found.__name__}", "default=True", "without it"
        )
    if declared.reads not in get_args(Reads):
        raise expected(f"reads as one of {', '.join(get_args(Reads))}", repr(declared.reads), "reads='tokens'")
    return declared.name, declared


METRICS = Registry[Metric]("metric", group="unsmooth.metrics", accept=_accept)


def with_checked_options(function: Callable[P, R]) -> Callable[P, R]:
    """A function whose options, but for tensors, are checked by what it declares of them before it is called.

    >>> @with_checked_options
    ... def scaled(x: float, *, by: float = 1.0) -> float:
    ...     return by * x
    >>> scaled(2.0, by="3")
    Traceback (most recent call last):
    unsmooth.errors.UnsmoothError: Expected by as a number but got '3'. Try by=1.0.
    """
    options = {name: option for name, option in options_of(function).items() if not name.endswith(("_BN", "_BND"))}
    if not options:
        return function

    @wraps(function)
    def checking(*inputs: P.args, **given: P.kwargs) -> R:
        if given and not torch.compiler.is_dynamo_compiling():
            for name, value in given.items():
                if name in options:  # of any other Python tells
                    given[name] = options[name].check(value)
        return function(*inputs, **given)

    return checking


def metric(
    *,
    definition: str,
    paper: str,
    cost: str,
    degenerate: str,
    chance: Callable[[float, int], float] | None = None,
    chance_note: str,
    reads: Reads = "tokens",
    default: bool = False,
    differentiable: bool = True,
    rises_when_alike: bool | None = None,
    invariances: tuple[Invariance, ...] = (),
    profile: Profile | LayerPairs | None = None,
) -> Callable[[Callable[P, Tensor]], Callable[P, Tensor]]:
    """Register a pure function as a metric under its own name.

    Args:
        definition: One line that a reader can compute from, for the default options.
        paper: Where the definition comes from.
        cost: Order of time for n tokens of d features.
        degenerate: What a single token and an all-zero sequence give.
        chance: Expected value for n independent isotropic Gaussian tokens of d features, where one exists.
        chance_note: The same in words, or why there is none.
        reads: "tokens" for x, "pair" for x and y, "grid" for x on a grid, "attention" for attention maps, "words" for x
            and the words there, "sequences" for x of many sequences.
        default: Whether a scan measures it unasked. Only O(nd) metrics may that, with their default options, read
            nothing of `Tokens` but the sums that all of them share.
        differentiable: Whether gradients with respect to x exist almost everywhere and are useful.
        rises_when_alike: Whether it grows as tokens become alike, None where it may do either.
        invariances: Changes of x that leave the value as it is; each is tested.
        profile: The row of numbers, or the number for every two layers, that a scan gives beside the one.
    """

    def register(plain: Callable[P, Tensor]) -> Callable[P, Tensor]:
        function, name = with_checked_options(plain), plain.__name__
        declared = Metric(
            name=name,
            function=function,
            definition=definition,
            paper=paper,
            cost=cost,
            chance=chance,
            chance_note=chance_note,
            degenerate=degenerate,
            reads=reads,
            default=default,
            differentiable=differentiable,
            rises_when_alike=rises_when_alike,
            invariances=frozenset(invariances),
            profile=profile,
        )
        _DECLARED[function] = METRICS.add(name, declared)
        return function

    return register


@dataclass(frozen=True)
class BoundMetric:
    """A metric with its options fixed, as a scan asks for it: ``mean_cosine(absolute=True)``."""

    metric: Metric
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Canonical spelling, used in frames, files and reports."""
        return str(Spec(self.metric.name, self.options))

    @property
    def definition(self) -> str:
        """The definition with the options that change it."""
        inside = write_options(self.options)
        return self.metric.definition + (f"; with {inside}" if inside else "")

    def __call__(self, *inputs: Any) -> Tensor:
        """Evaluate on tensors or `Tokens`."""
        return self.metric.function(*inputs, **self.options)


def parse_metric(text: str) -> BoundMetric:
    """Read ``name`` or ``name(option=value, …)``.

    >>> parse_metric("mean_cosine(with_self=True)").options
    {'with_self': True}
    """
    spec = read(text, "a metric such as mean_cosine(absolute=True)", "`unsmooth ls metrics`")
    found = METRICS[spec.name]
    return BoundMetric(found, checked(found.name, found.options, spec.options))
