"""P2's starting point: post-norm models stop training beyond some depth, and there their tokens are alike."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from unsmooth.evidence.bench import Bench
from unsmooth.evidence.by_depth import (
    DEPTHS,
    MOMENTS,
    accuracies,
    best_rates,
    by_layer,
    depth,
    has,
    kept_by_depth,
    last_cosines,
    mean_accuracy,
    over_half_way,
)
from unsmooth.evidence.claim import P2, Claim, Measured, claim
from unsmooth.evidence.figure import Figure, Panel, Series, with_intervals
from unsmooth.evidence.finding import Finding, Judgement, Verdict, judged
from unsmooth.evidence.interval import Interval, over_seeds, paired

SHALLOW, *DEEP = DEPTHS
AS_GOOD = 0.02
ALIKE, NOT_ALIKE = 0.95, 0.5


@claim
class PostNormFailsDeep(Claim):
    """With a class token and Xavier's initialisation, each model at the best of three learning rates."""

    id: ClassVar[str] = "post-norm-fails-deep"
    number: ClassVar[int] = 13
    source: ClassVar[str] = f"{P2}, abstract: post-norm models on CIFAR-10; depths and accuracies are not public"
    statement: ClassVar[str] = (
        "Post-norm models fail to train beyond some depth at which pre-norm models train, and the tokens of those that "
        "fail are nearly all alike (class token, Xavier's initialisation)."
    )
    confirmed_if: ClassVar[str] = (
        "with 24 or 40 blocks, each model at its own best rate, post-norm fails: the 95 % interval over seeds of its "
        "accuracy, less the middle between guessing and pre-norm's of the same seed, lies below 0, and pre-norm's "
        "accuracy lies above twice guessing; with 12 blocks that interval lies above 0; and at each depth that fails "
        "the mean cosine at the last layer lies above 0.95, before and after training"
    )
    refuted_if: ClassVar[str] = (
        "at all depths the interval of post-norm's accuracy minus pre-norm's lies above -2 points; or at a depth that "
        "fails the mean cosine at the last layer, before or after training, lies below 0.5"
    )
    studies: ClassVar[tuple[str, ...]] = ("depth_rates", "depth_seeds")

    def measure(self, bench: Bench) -> dict[str, Any]:
        """Post-norm and pre-norm models alone."""
        return kept_by_depth(bench, lambda variant: variant.startswith(("post-", "pre-")))

    def judge(self, measured: Measured) -> Judgement:
        """Which depths fail, what tokens are like there, and how far post-norm is from pre-norm."""
        failing = [name for name in _depths(measured) if name in DEEP and _fails(measured, name)]
        findings = [
            *_half_ways(measured, failing),
            *_likenesses(measured, failing),
            *_gaps(measured),
            *_at_one_rate(measured),
        ]
        return judged(findings, _words(measured, failing))

    def figure(self, measured: Measured) -> Figure:
        """Accuracy by depth, and mean cosine by layer before and after."""
        names = _depths(measured)
        lines = [
            with_intervals(
                f"{kind}-norm",
                [depth(measured, f"{kind}-{name}") for name in names],
                [over_seeds(list(accuracies(measured, f"{kind}-{name}").values())) for name in names],
            )
            for kind in ("post", "pre")
        ]
        panels = [
            Panel("each at its best rate", "blocks", "accuracy", lines, reference=measured["chance"]),
            Panel("every rate, one seed", "learning rate", "accuracy", _probes(measured), log_x=True),
            *(
                Panel(
                    title=moment,
                    x="layer",
                    y="mean cosine",
                    series=[by_layer(measured, f"{kind}-{name}", moment) for kind in ("post", "pre") for name in names],
                )
                for moment in MOMENTS
            ),
        ]
        return Figure(
            "Accuracy of post-norm and pre-norm models by depth (the thin line is guessing), and mean cosine of their "
            "tokens by layer; mean and 95 % interval over seeds.",
            panels,
        )


def _depths(measured: Measured) -> list[str]:
    return [name for name in DEPTHS if has(measured, f"post-{name}", f"pre-{name}")]


def _deep(measured: Measured, name: str) -> str:
    return f"{depth(measured, f'post-{name}')} blocks"


def _half_way(measured: Measured, name: str) -> Interval:
    return over_half_way(measured, f"post-{name}", f"pre-{name}")


def _fails(measured: Measured, name: str) -> bool:
    """Whether post-norm has learned less than half of what pre-norm has, and pre-norm something."""
    pre = over_seeds(list(accuracies(measured, f"pre-{name}").values()))
    return _half_way(measured, name).high < 0 and pre.low > 2 * float(measured["chance"])


def _half_ways(measured: Measured, failing: list[str]) -> Iterator[Finding]:
    """The deepest first. It is enough that one depth fails, so the others only speak where none does."""
    for name in reversed(_depths(measured)):
        half = _half_way(measured, name)
        verdict: Verdict | None = "confirmed" if name in failing else None if failing else "undecided"
        if name == SHALLOW:
            verdict = "confirmed" if half.low > 0 else "undecided"
        what = f"accuracy of post-norm over half-way from guessing to pre-norm's, {_deep(measured, name)}"
        yield Finding(what, half, verdict)


def _likenesses(measured: Measured, failing: list[str]) -> Iterator[Finding]:
    """What is claimed of tokens is claimed where models fail."""
    for name in _depths(measured):
        for moment in MOMENTS:
            cosine = over_seeds(list(last_cosines(measured, f"post-{name}", moment).values()))
            verdict: Verdict = "confirmed" if cosine.low > ALIKE else "undecided"
            if cosine.high < NOT_ALIKE:
                verdict = "refuted"
            what = f"mean cosine at the last layer {moment}, post-norm, {_deep(measured, name)}"
            yield Finding(what, cosine, verdict if name in failing else None)


def _gaps(measured: Measured) -> Iterator[Finding]:
    """They refute together or not at all."""
    gaps = {
        name: paired(accuracies(measured, f"post-{name}"), accuracies(measured, f"pre-{name}"))
        for name in _depths(measured)
    }
    as_good = all(gap.low > -AS_GOOD for gap in gaps.values())
    for name, gap in gaps.items():
        what = f"accuracy, post-norm minus pre-norm, {_deep(measured, name)}"
        yield Finding(what, gap, "refuted" if as_good else None)


def _at_one_rate(measured: Measured) -> list[Finding]:
    """What a comparison at the highest rate would have said, of the one seed that the rates were chosen with."""
    rate = max(next(iter(measured["probes"].values())), key=float)
    return [
        Finding(
            f"accuracy, post-norm minus pre-norm, {_deep(measured, name)}, both at rate {rate}, one seed",
            over_seeds([measured["probes"][f"post-{name}"][rate] - measured["probes"][f"pre-{name}"][rate]]),
        )
        for name in _depths(measured)
    ]


def _probes(measured: Measured) -> list[Series]:
    return [Series(name, list(map(float, rates)), list(rates.values())) for name, rates in measured["probes"].items()]


def _words(measured: Measured, failing: list[str]) -> str:
    means = "; ".join(
        f"{_deep(measured, name)}: post-norm {mean_accuracy(measured, f'post-{name}'):.3f}, "
        f"pre-norm {mean_accuracy(measured, f'pre-{name}'):.3f}"
        for name in _depths(measured)
    )
    where = ", ".join(_deep(measured, name) for name in failing) or "no depth"
    return f"Accuracy with {means}. Post-norm fails with {where}. {best_rates(measured)}"
