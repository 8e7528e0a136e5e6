"""A case: one claim of the theory with everything needed to run it, and what running it found."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from torch import Tensor

from unsmooth.errors import expected
from unsmooth.registry import Registry
from unsmooth.theory.iterate import NormKind, PerLayer, Place, Trajectory, iterate
from unsmooth.theory.outcome import LIMITS, outcome
from unsmooth.theory.predict import predict

P1 = "P1 (arXiv 2401.04301)"
P2 = "P2 (arXiv 2312.06182)"
BEYOND_P1 = f"extends {P1}"
BEYOND_P2 = f"extends {P2}"
LOW_PASS = "Wang et al. (arXiv 2203.05962)"
Relation: TypeAlias = Literal["≈", "<", ">"]


@dataclass(frozen=True)
class Comparison:
    """A measured number beside what the theory says about it.

    >>> Comparison("growth", 1.5, "≈", 1.4, tolerance=0.05).holds
    False
    """

    what: str
    value: float
    relation: Relation
    reference: float
    tolerance: float = 1e-9

    @property
    def holds(self) -> bool:
        """False for NaN too."""
        if self.relation == "≈":
            return abs(self.value - self.reference) <= self.tolerance
        return self.value < self.reference if self.relation == "<" else self.value > self.reference

    def __str__(self) -> str:
        within = f" within {self.tolerance:.3g}" if self.relation == "≈" else ""
        return f"{self.what} {self.value:.4g} {self.relation} {self.reference:.4g}{within}"


@dataclass(frozen=True)
class Setup:
    """What `iterate` takes."""

    attention: PerLayer
    h: PerLayer
    x0: Tensor
    depth: int
    norm: Place | None = None
    norm_weight: PerLayer | None = None
    norm_kind: NormKind = "layer"
    normalise: bool = True

    def run(self) -> Trajectory:
        """Iterate."""
        return iterate(
            self.x0,
            self.attention,
            self.h,
            depth=self.depth,
            norm=self.norm,
            norm_weight=self.norm_weight,
            norm_kind=self.norm_kind,
            normalise=self.normalise,
        )

    @property
    def map_NN(self) -> Tensor:
        """The attention of a setup in which it is fixed."""
        return _fixed(self.attention)

    @property
    def h_DD(self) -> Tensor:
        """The weights of a setup in which they are fixed."""
        return _fixed(self.h)

    @property
    def gain_D(self) -> Tensor:
        """The norm's weight of a setup in which it is fixed."""
        return _fixed(self.norm_weight)

    @property
    def is_plain(self) -> bool:
        """One head, one map and one H for all layers, no norm: what `predict` speaks about."""
        fixed = isinstance(self.attention, Tensor) and isinstance(self.h, Tensor)
        return fixed and self.norm is None and self.map_NN.ndim == 2


def _fixed(given: PerLayer | None) -> Tensor:
    if not isinstance(given, Tensor):
        raise expected("one tensor for all layers", type(given).__name__, "a setup in which it is fixed")
    return given


@dataclass(frozen=True)
class CaseResult:
    """What running a case found.

    Attributes:
        name: The case's.
        predicted: What the theory says, a limit out of `LIMITS` or a sentence.
        reached: The limit that the iteration reached, or the same sentence where every comparison holds and the
            failing comparisons where not.
        by_eigenvalues: The limit that `predict` gives, where it speaks about the case.
        comparisons: Every number beside its reference.
    """

    name: str
    predicted: str
    reached: str
    by_eigenvalues: str | None
    comparisons: tuple[Comparison, ...]

    @property
    def numbers(self) -> Mapping[str, float]:
        """Measured numbers by name."""
        return {one.what: one.value for one in self.comparisons}

    @property
    def holds(self) -> bool:
        """Whether the limit was reached, `predict` agrees and every comparison holds."""
        agreed = self.by_eigenvalues in (None, self.predicted)
        return agreed and self.reached == self.predicted and all(one.holds for one in self.comparisons)


@dataclass(frozen=True)
class Case:
    """One claim.

    Args:
        name: Short name, the registry's key.
        group: What it is about, for the page.
        description: The claim in a sentence or two.
        paper: Whose it is, or whom it extends.
        predicted: A limit out of `LIMITS`, or a sentence that its comparisons decide.
        build: Makes attention, weights, tokens, depth and options.
        check: From the setup and its trajectory to comparisons.
    """

    name: str
    group: str
    description: str
    paper: str
    predicted: str
    build: Callable[[], Setup]
    check: Callable[[Setup, Trajectory], Sequence[Comparison]]

    def run(self) -> CaseResult:
        """Build, iterate, compare."""
        setup = self.build()
        trajectory = setup.run()
        comparisons = tuple(self.check(setup, trajectory))
        is_limit = self.predicted in LIMITS
        return CaseResult(
            name=self.name,
            predicted=self.predicted,
            reached=outcome(trajectory).limit if is_limit else _reached(self.predicted, comparisons),
            by_eigenvalues=predict(setup.map_NN, setup.h_DD).limit if is_limit and setup.is_plain else None,
            comparisons=comparisons,
        )


def _reached(predicted: str, comparisons: Sequence[Comparison]) -> str:
    failing = [str(one) for one in comparisons if not one.holds]
    return "not so: " + "; ".join(failing) if failing else predicted


CASES = Registry[Case]("case")
Check: TypeAlias = Callable[[Setup, Trajectory], Sequence[Comparison]]


def case(
    build: Callable[[], Setup], *, name: str, group: str, description: str, predicted: str, paper: str = P1
) -> Callable[[Check], Check]:
    """Register the function below it as the check of a new case."""

    def register(check: Check) -> Check:
        CASES.add(name, Case(name, group, description, paper, predicted, build, check))
        return check

    return register
