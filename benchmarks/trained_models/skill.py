"""What a tier is worth over lineages: each is foretold with the slope and the offset that the other lineages gave."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import numpy
from numpy.typing import NDArray

from unsmooth.evidence.interval import over_seeds
from unsmooth.explaining.score import PERSISTENCE, persisting
from unsmooth.explaining.tiers import TIERS

DEPTH = "depth alone"
BASELINES = (PERSISTENCE, DEPTH)
SCORES = ("explained", "balanced_accuracy", "accuracy")
Array = NDArray[numpy.float64]


@dataclass(frozen=True)
class Model:
    """One model's layers.

    Args:
        name: Its name.
        lineage: What it shares with models that were trained from one another.
        ours: Whether it was trained here.
        measured: Change of logit t_sim over each layer.
        predicted: The same as each tier foretells it; NaN where it cannot.
    """

    name: str
    lineage: str
    ours: bool
    measured: Sequence[float]
    predicted: Mapping[str, Sequence[float]]

    def features(self, name: str) -> Array:
        """What a prediction is fitted from: 1 and what the tier says (layers, 2), or 1, x and x² of the depth x."""
        if name == DEPTH:
            depth = (numpy.arange(len(self.measured)) + 0.5) / len(self.measured)
            return numpy.stack([numpy.ones_like(depth), depth, depth**2], axis=1)
        said = numpy.array(persisting(self.measured) if name == PERSISTENCE else self.predicted[name], dtype=float)
        return numpy.stack([numpy.ones_like(said), said], axis=1)

    @property
    def variance(self) -> float:
        """Σ(m − m̄)² over its layers."""
        measured = numpy.array(self.measured)
        return float(((measured - measured.mean()) ** 2).sum())


def fitted(models: Sequence[Model], name: str) -> Array:
    """Coefficients for which the mean over lineages of the share explained is largest.

    Least squares in which the layers of a model weigh one over its Σ(m − m̄)², and lineages all the same.

    >>> one = Model("a", "a", False, [1.0, 3.0], {"T1": [0.0, 1.0]})
    >>> fitted([one], "T1").round(9).tolist()
    [1.0, 2.0]
    """
    lineages = [model.lineage for model in models]
    rows, wanted = [], []
    for model in models:
        features, measured = model.features(name), numpy.array(model.measured)
        known = numpy.isfinite(features).all(axis=1) & numpy.isfinite(measured)
        weight = math.sqrt(1.0 / (model.variance * lineages.count(model.lineage)))
        rows.append(features[known] * weight)
        wanted.append(measured[known] * weight)
    found: Array = numpy.linalg.lstsq(numpy.concatenate(rows), numpy.concatenate(wanted), rcond=None)[0]
    return found


def scored(models: Sequence[Model], name: str, coefficients: Array) -> dict[str, float | None]:
    """Share explained, balanced accuracy and accuracy over the layers of one lineage's models.

    Tiers and persistence tell a direction themselves; that of depth alone is the fitted one.
    """
    missed, right = 0.0, {True: [0, 0], False: [0, 0]}
    for model in models:
        features, measured = model.features(name), numpy.array(model.measured)
        said = features @ coefficients
        missed += float(((measured - said) ** 2).sum())
        for value, direction in zip(measured, said if name == DEPTH else features[:, 1], strict=True):
            right[value > 0][0] += (direction > 0) == (value > 0)
            right[value > 0][1] += 1
    shares = [found / count for found, count in right.values() if count]
    return {
        "explained": 1.0 - missed / sum(model.variance for model in models),
        "balanced_accuracy": sum(shares) / 2 if len(shares) == 2 else None,
        "accuracy": sum(found for found, _ in right.values()) / sum(count for _, count in right.values()),
    }


def by_lineage(models: Sequence[Model], name: str) -> dict[bool, dict[str, dict[str, float | None]]]:
    """Scores of each lineage, ours (True) apart: fitted on the public lineages but itself."""
    found: dict[bool, dict[str, dict[str, float | None]]] = {False: {}, True: {}}
    public = [model for model in models if not model.ours]
    for lineage in dict.fromkeys(model.lineage for model in models):
        members = [model for model in models if model.lineage == lineage]
        others = [model for model in public if model.lineage != lineage]
        found[members[0].ours][lineage] = scored(members, name, fitted(others, name))
    return found


def skills_over(models: Sequence[Model], looked_at: Set[str]) -> dict[str, Any]:
    """For public lineages, for those that nobody had looked at and for ours: every score as a mean over lineages.

    Beside each stands its gain over both baselines, lineage by lineage, with Student's 95 % interval.

    Args:
        models: Their layers.
        looked_at: Lineages whose layers were looked at while the tiers were made.
    """
    names = [*TIERS, *BASELINES]
    each = {name: by_lineage(models, name) for name in names}
    public = list(each[DEPTH][False])
    groups = {
        "public": (False, public),
        "held out": (False, [name for name in public if name not in looked_at]),
        "ours": (True, list(each[DEPTH][True])),
    }
    return {
        group: {
            "lineages": lineages,
            "skills": {name: _summary(each, name, ours, lineages) for name in names} if lineages else {},
        }
        for group, (ours, lineages) in groups.items()
    }


def _summary(each: Mapping[str, Any], name: str, ours: bool, lineages: Sequence[str]) -> dict[str, Any]:
    own = each[name][ours]
    found: dict[str, Any] = {"by_lineage": {lineage: own[lineage] for lineage in lineages}}
    for score in SCORES:
        known = [lineage for lineage in lineages if own[lineage][score] is not None]
        if not known:
            continue
        found[score] = over_seeds([own[lineage][score] for lineage in known]).to_json()
        for baseline in BASELINES:
            other = each[baseline][ours]
            gains = [own[lineage][score] - other[lineage][score] for lineage in known]
            found[f"{score}, gain over {baseline}"] = over_seeds(gains).to_json()
    return found
