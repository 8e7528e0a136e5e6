"""How well a prediction tells what layers do: share of the variance explained and directions, beside persistence."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from unsmooth.explaining.result import LayerFinding, Skill
from unsmooth.explaining.tiers import TIERS

EXACT = "T4"
PERSISTENCE = "persistence"
VERDICTS = "verdicts"
KNOWS: Mapping[str, str] = {
    **{name: tier.knows for name, tier in TIERS.items()},
    PERSISTENCE: "what the layer before did, which it repeats; of the first layer nothing",
    VERDICTS: "which modes would grow fastest, were the layer repeated for ever",
}


def skill(name: str, predicted: Sequence[float], measured: Sequence[float]) -> Skill | None:
    """Compare predicted with measured changes of logit t_sim; None where there is nothing to compare.

    Layers with NaN on either side are left out. A predicted 0 counts as a fall.

    >>> found = skill("T2", [1.0, 1.0, 1.0, -1.0], [1.0, 1.0, -1.0, -1.0])
    >>> found.accuracy, found.balanced_accuracy, found.explained
    (0.75, 0.75, 0.0)
    """
    pairs = [(p, m) for p, m in zip(predicted, measured, strict=True) if math.isfinite(p) and math.isfinite(m)]
    if not pairs:
        return None
    rises = [p > 0 for p, m in pairs if m > 0]
    falls = [p <= 0 for p, m in pairs if m <= 0]
    return Skill(
        name=name,
        knows=KNOWS[name],
        layers=len(pairs),
        explained=explained(pairs),
        accuracy=(sum(rises) + sum(falls)) / len(pairs),
        balanced_accuracy=(sum(rises) / len(rises) + sum(falls) / len(falls)) / 2 if rises and falls else None,
    )


def explained(pairs: Sequence[tuple[float, float]]) -> float | None:
    """1 − Σ(m − p)²/Σ(m − m̄)² of pairs of predicted p and measured m; None where nothing varies.

    >>> explained([(1.0, 1.0), (3.0, 3.0)]), explained([(2.0, 1.0), (2.0, 3.0)]), explained([(1.0, 2.0)])
    (1.0, 0.0, None)
    """
    mean = sum(m for _, m in pairs) / len(pairs)
    whole = sum((m - mean) ** 2 for _, m in pairs)
    return 1.0 - sum((m - p) ** 2 for p, m in pairs) / whole if whole > 0 else None


def persisting(measured: Sequence[float]) -> list[float]:
    """What persistence says of each layer.

    >>> persisting([0.5, -0.25, 1.0])
    [0.0, 0.5, -0.25]
    """
    return [0.0, *measured[:-1]]


def skills(layers: Sequence[LayerFinding]) -> tuple[Skill, ...]:
    """Of every tier, of persistence and of the verdicts on the layers of one model; empty without data."""
    measured = [math.nan if one.logit_change is None else one.logit_change for one in layers]
    predicted: dict[str, list[float]] = {tier: [one.predicted.get(tier, math.nan) for one in layers] for tier in TIERS}
    predicted[PERSISTENCE] = persisting(measured)
    predicted[VERDICTS] = [math.nan if one.rest_modulus is None else one.margin for one in layers]
    found = [one for name, values in predicted.items() if (one := skill(name, values, measured)) is not None]
    return tuple(replace(one, explained=None) if one.name == VERDICTS else one for one in found)


def skill_of(found: Iterable[Skill], name: str) -> Skill | None:
    """The one of that name."""
    return next((one for one in found if one.name == name), None)


def beats_persistence(one: Skill, found: Sequence[Skill]) -> bool:
    """Whether it tells the directions of this model's layers better than persistence, and than a coin.

    The balanced accuracy is higher and the accuracy no lower; where layers all go one way the accuracy is higher.
    """
    other = skill_of(found, PERSISTENCE)
    if other is None:
        return False
    if one.balanced_accuracy is None or other.balanced_accuracy is None:
        return one.accuracy > other.accuracy
    return one.balanced_accuracy > max(other.balanced_accuracy, 0.5) and one.accuracy >= other.accuracy


def able_tiers(found: Sequence[Skill]) -> list[Skill]:
    """The tiers that beat persistence on this model, the one first that tells most; of equals, that which knows less.

    T4, which runs the block itself, is the ceiling and no prediction.
    """
    able = [one for one in found if one.name in TIERS and one.name != EXACT and beats_persistence(one, found)]

    def rank(one: Skill) -> tuple[float, float]:
        right = one.accuracy if one.balanced_accuracy is None else one.balanced_accuracy
        return -right, math.inf if one.explained is None else -one.explained

    return sorted(able, key=rank)


def best_tier(found: Sequence[Skill]) -> Skill | None:
    """The first of `able_tiers`; None where there is none."""
    return next(iter(able_tiers(found)), None)
