"""How well a rule predicts the direction of a layer's change: always beside what guessing would reach."""

from __future__ import annotations

import math
from collections.abc import Sequence

from unsmooth.explaining.result import RuleScore


def score(rule: str, definition: str, predicted: Sequence[float], measured: Sequence[float]) -> RuleScore | None:
    """Compare predicted with measured changes; None where there is nothing to compare.

    Layers with NaN on either side are left out. A predicted 0 counts as a fall.

    >>> found = score("r", "", [1.0, 1.0, 1.0, -1.0], [0.2, 0.1, -0.3, -0.1])
    >>> found.accuracy, found.balanced_accuracy, found.majority
    (0.75, 0.75, 0.5)
    """
    pairs = [(p, m) for p, m in zip(predicted, measured, strict=True) if math.isfinite(p) and math.isfinite(m)]
    if not pairs:
        return None
    rises = [p > 0 for p, m in pairs if m > 0]
    falls = [p <= 0 for p, m in pairs if m <= 0]
    right = sum(rises) + sum(falls)
    balanced = (sum(rises) / len(rises) + sum(falls) / len(falls)) / 2 if rises and falls else None
    return RuleScore(
        rule=rule,
        definition=definition,
        layers=len(pairs),
        accuracy=right / len(pairs),
        balanced_accuracy=balanced,
        majority=max(len(rises), len(falls)) / len(pairs),
        rank_correlation=_spearman(pairs),
    )


def best_rule(scores: Sequence[RuleScore]) -> RuleScore | None:
    """The rule with the best balanced accuracy; plain accuracy where all layers go one way. None without scores.

    Ties are broken by the rank correlation.
    """

    def rank(one: RuleScore) -> tuple[float, ...]:
        numbers = (one.balanced_accuracy, one.accuracy, one.rank_correlation)
        return tuple(-math.inf if value is None or not math.isfinite(value) else value for value in numbers)

    return max(scores, key=rank, default=None)


def verdict_score(scores: Sequence[RuleScore]) -> RuleScore | None:
    """How well the verdicts tell the direction: "smoothing" is the rule `dominance` with a rise."""
    return next((one for one in scores if one.rule == "dominance"), None)


def _spearman(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Spearman's rank correlation, ties at their mean rank; None for fewer than three layers or a constant side."""
    from scipy.stats import spearmanr

    first, second = zip(*pairs, strict=True)
    if len(pairs) < 3 or len(set(first)) < 2 or len(set(second)) < 2:
        return None
    return float(spearmanr(first, second).statistic)
