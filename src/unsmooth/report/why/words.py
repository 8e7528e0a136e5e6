"""Captions and sentences of the Why part."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from unsmooth.numbers import spoken
from unsmooth.report.series import number, printable

if TYPE_CHECKING:
    from unsmooth.explaining.result import Explanation, Growth, LayerFinding, Skill

CLOUD_READING = (
    "Attention that averages all tokens leaves what differs between them as it was, so a mode in which all tokens are "
    "equal outgrows it where |1 + λ/σ| > 1: outside the disc of radius 1 around −1. Attention whose eigenvalues are "
    "real and reach down to m has the disc with centre −1/(1 + m) and radius 1/(1 + m) instead (dashed). Dotted: "
    "around −1, with the growth of the fastest other mode under the measured attention as radius; an eigenvalue "
    "outside it makes the layer smooth. Ring: the largest |1 + λ/σ|, the fastest mode in which all tokens are equal."
)


def cloud_caption(one: LayerFinding, count: int, shown: int, other: tuple[float, int] | None) -> str:
    """Which eigenvalues these are, whose attention gave the dashed disc, and what was left out."""
    scale = number(one.scale)
    if one.place == "post":
        parts = [
            f"{count} eigenvalues of the layer's update on equal tokens, less 1, with the norm after the addition "
            "folded in. That norm scales the rest too, so the disc of radius 1 is a guide only."
        ]
    else:
        at = f"divided by σ = {spoken(scale)}" if scale is not None else "at σ = 1, since no data gave its own"
        parts = [f"{count} eigenvalues of the summed value projection, {at}."]
    if other is not None:
        parts.append(f"m = {spoken(other[0])}, from the dominating mode of head {other[1]}.")
    if shown < count:
        parts.append(f"Drawn: {shown} of them, the outer ones and an even choice of the crowd.")
    if len(one.eigenvalues) > count:
        parts.append(f"{len(one.eigenvalues) - count} were not finite.")
    return " ".join(parts)


def verdicts_caption(explanation: Explanation) -> str:
    """How many layers and heads go which way, and whether the layers did."""
    said = [f"Layers: {_counted(explanation.layers)}."]
    if explanation.heads:
        said.append(f"Heads, each as if alone in its layer: {_counted(explanation.heads)}.")
    from unsmooth.explaining.words import verdicts_judged  # brings torch, which no import of the report waits for

    said.append(verdicts_judged(explanation.skills))
    return " ".join(filter(None, said))


def _counted(findings: Sequence[Any]) -> str:
    counts = Counter(one.verdict for one in findings)
    return ", ".join(f"{count} {verdict}" for verdict, count in counts.most_common())


def prediction_caption(one: Skill) -> str:
    """What the tier knew and how well it does."""
    return (
        f"{one.name} knows {printable(one.knows)}. It tells the direction of {one.accuracy:.0%} of {one.layers} "
        f"layers; balanced accuracy {spoken(one.balanced_accuracy)}, share of the variance explained "
        f"{spoken(one.explained)}."
    )


def breakdown_caption(layers: Sequence[LayerFinding]) -> str:
    """What the bars sum to, and by how much they miss it."""
    text = "Shares of the change of t_sim: above zero they make tokens more alike. Diamonds: the measured change."
    gaps = [
        abs(one.breakdown.total - one.measured)
        for one in layers
        if one.breakdown is not None and one.measured is not None
    ]
    worst = max((gap for gap in gaps if math.isfinite(gap)), default=None)
    return text if worst is None else f"{text} Bars sum to it{'' if worst < 1e-6 else f' within {worst:.1g}'}."


def stack_in_words(growth: Growth) -> str:
    """The exponents of the whole stack as growth per layer and over all of them."""
    mean, rest = number(growth.mean_exponent), number(growth.rest_exponent)
    if mean is None or rest is None:
        return "The growth over the stack was not finite."
    each = f"grows by a factor of {_factor(mean)} a layer (exponent {spoken(mean)})"
    more = abs(mean - rest) * growth.layers
    winner, loser = ("the token mean", "the rest") if mean > rest else ("the rest", "the token mean")
    end = f"{winner} outgrows {loser} by a factor of {_factor(more)} in all" if more > 1e-9 else "neither outgrows"
    return (
        f"Through the real stack of {growth.layers} layers the token mean {each}, what differs between tokens by "
        f"{_factor(rest)} ({spoken(rest)}): {end}."
    )


def _factor(exponent: float) -> str:
    """The growth that an exponent stands for.

    >>> _factor(0.0), _factor(2000.0)
    ('1', 'e^2000')
    """
    return spoken(math.exp(exponent)) if abs(exponent) < 200 else f"e^{spoken(exponent)}"
