"""One harness for every remedy and host: a case passes a check, fails it, or is impossible for a reason that is given.

A check is a function of a `Case` that raises where the case fails; it is registered under the words that the matrix
shows. What counts as impossible is what `apply` itself refuses, with the model untouched.
"""

from __future__ import annotations

import itertools
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from tests.remedies.hosts import FAMILIES, HOSTS, TestHost
from tests.remedies.settings import SETTINGS, Setting
from tests.remedies.snapshot import Snapshot
from unsmooth import remedies
from unsmooth.errors import UnsmoothError
from unsmooth.remedies import names
from unsmooth.remedies.base import REMEDIES

Status = Literal["pass", "fail", "impossible", "not applicable"]
HOME = ".unsmooth."


class DoesNotApplyError(Exception):
    """The check says nothing about such a case, for the reason given."""


@dataclass(frozen=True)
class Outcome:
    """What came of one check on one case."""

    status: Status
    reason: str = ""


@dataclass(frozen=True)
class Case:
    """One remedy, in one setting, on one host."""

    remedy: str
    variant: str
    host: TestHost

    @property
    def setting(self) -> Setting:
        """What is applied."""
        return SETTINGS[self.remedy][self.variant]

    @property
    def name(self) -> str:
        """Shown by pytest."""
        return f"{self.remedy}-{self.variant}-{self.host.name}"

    @property
    def unpadded(self) -> bool:
        """Whether it refuses batches with padding."""
        return self.setting.unpadded

    def apply(self, model: nn.Module, neutral: bool = False, loaded: bool = False) -> None:
        """Apply the remedy; what it draws at random is the same each time.

        Args:
            model: The host.
            neutral: Add the remedy's neutral options to the setting's.
            loaded: Add the options that give what loading a plain checkpoint gives.
        """
        torch.manual_seed(7)
        options = dict(self.setting.options)
        options |= (REMEDIES[self.remedy].neutral or {}) if neutral else {}
        options |= self.setting.as_loaded if loaded else {}
        remedies.apply(model, self.remedy, **options)

    def remedied(self, trained: bool = True, seed: int = 0, **how: bool) -> Any:
        """The host with the remedy applied.

        Args:
            trained: Move its new parameters, as training would, so that none is at a special value.
            seed: Of the host's weights.
            **how: As `apply` takes it.
        """
        model = self.host.model(seed)
        self.apply(model, **how)
        if trained:
            train_a_little(model)
        return model

    def refusal(self) -> str | None:
        """Why the host cannot have it, or None where it can."""
        return self._refusal(self.host.model())

    def _refusal(self, model: nn.Module) -> str | None:
        before = Snapshot.of(model)
        try:
            remedies.apply(model, self.remedy, **self.setting.options)
        except UnsmoothError as error:
            before.check(model)
            return str(error)
        try:
            outputs(self, model)
        except UnsmoothError as error:  # where a call says that attention is causal
            return str(error)
        return None


@dataclass(frozen=True)
class Pair(Case):
    """A remedy on top of another."""

    below: Case

    @property
    def name(self) -> str:
        """Shown by pytest."""
        return f"{self.below.remedy}, then {self.remedy} on {self.host.name}"

    @property
    def unpadded(self) -> bool:
        """Whether either does."""
        return self.setting.unpadded or self.below.unpadded

    def apply(self, model: nn.Module, neutral: bool = False, loaded: bool = False) -> None:
        """Apply both."""
        self.below.apply(model, neutral, loaded)
        super().apply(model, neutral, loaded)

    def refusal(self) -> str | None:
        """Why the second cannot be had with the first, or on this host."""
        return self.below.refusal() or self._refusal(self.below.remedied(trained=False))


def new_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Those that a remedy brought."""
    return {name: parameter for name, parameter in model.named_parameters() if HOME in f".{name}"}


def train_a_little(model: nn.Module, size: float = 0.1) -> None:
    """Move every new parameter, each by its own amount."""
    generator = torch.Generator().manual_seed(11)
    with torch.no_grad():
        for parameter in new_parameters(model).values():
            parameter.add_(size * torch.randn(parameter.shape, generator=generator))


@torch.no_grad()
def outputs(case: Case, model: nn.Module, inputs: Tensor | None = None, **call: Any) -> Tensor:
    """What the model makes of the case's batch, or of `inputs`."""
    inputs = case.host.inputs() if inputs is None else inputs
    return case.host.output(model, {**case.host.call(inputs), **call})


def close(got: Tensor, wanted: Tensor, what: str, tolerance: float = 2e-5) -> None:
    """Refuse tensors that differ by more than `tolerance` of the largest number in them, or are not finite."""
    assert got.shape == wanted.shape, f"{what}: shape {tuple(got.shape)}, not {tuple(wanted.shape)}"
    assert got.isfinite().all(), f"{what}: not finite"
    apart = float((got - wanted).abs().max())
    allowed = tolerance * max(1.0, float(wanted.abs().max()))
    assert apart <= allowed, f"{what}: {apart:.1e} apart, {allowed:.1e} allowed"


def same(got: Tensor, wanted: Tensor, what: str) -> None:
    """Refuse tensors that differ in any bit."""
    assert torch.equal(got, wanted), f"{what}: not bit-equal, {float((got - wanted).abs().max()):.1e} apart"


Check = Callable[[Case], None]
CHECKS: dict[str, Check] = {}
OF_PAIRS = (
    "no token sees the future",
    "padding changes nothing",
    "decoding equals the full pass",
    "gradients reach every parameter",
    "undo is bit-equal",
    "copies are independent",
    "folds, or says why not",
    "state_dict round-trips",
)


def check(words: str) -> Callable[[Check], Check]:
    """Register a check under the words that the matrix shows."""

    def register(function: Check) -> Check:
        CHECKS[words] = function
        return function

    return register


def run(words: str, case: Case) -> Outcome:
    """One check of one case."""
    try:
        CHECKS[words](case)
    except DoesNotApplyError as error:
        return Outcome("not applicable", str(error))
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        return Outcome("fail", f"{type(error).__name__}: {error} ({where.name}:{where.lineno})")
    return Outcome("pass")


def run_all(case: Case, without: tuple[str, ...] = ()) -> dict[str, Outcome]:
    """Every check of one case; one that is impossible is asked nothing else."""
    try:
        reason = case.refusal()
    except Exception as error:
        return {"applies": Outcome("fail", f"{type(error).__name__}: {error}")}
    meant = case.host.name in case.setting.refused_by or "every" in case.setting.refused_by
    if reason is not None:
        return {"applies": Outcome("impossible" if meant else "fail", reason)}
    if meant:
        return {"applies": Outcome("fail", "expected to be refused, but it was applied")}
    return {"applies": Outcome("pass"), **{words: run(words, case) for words in CHECKS if words not in without}}


def run_pair(pair: Pair) -> dict[str, Outcome]:
    """The checks that two remedies at once could fail; either may refuse the other."""
    try:
        reason = pair.refusal()
    except Exception as error:
        return {"applies": Outcome("fail", f"{type(error).__name__}: {error}")}
    if reason is not None:
        return {"applies": Outcome("impossible", reason)}
    return {"applies": Outcome("pass"), **{words: run(words, pair) for words in OF_PAIRS}}


def pairs(host: TestHost) -> list[Pair]:
    """Every remedy on top of every other, each in its first setting, of those that the host can have."""
    first = [Case(remedy, next(iter(SETTINGS[remedy])), host) for remedy in names() if remedy in SETTINGS]
    first = [case for case in first if host.name not in case.setting.refused_by]
    return [Pair(above.remedy, above.variant, host, below) for below, above in itertools.permutations(first, 2)]


def cases() -> Iterator[Case]:
    """Every remedy in its first setting on each host, and in the others on one host of each family.

    Where no family can have a setting, it is tried on all hosts too.
    """
    for remedy in names():
        for place, (variant, setting) in enumerate(SETTINGS.get(remedy, {}).items()):
            some = place > 0 and any(host.name not in setting.refused_by for host in FAMILIES)
            for host in FAMILIES if some else HOSTS:
                yield Case(remedy, variant, host)
