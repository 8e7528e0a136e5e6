"""The quantities of trained models that unsmooth/evidence/trained_models.json registers, each as it reads there."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy
import torch
from scipy.stats import spearmanr
from torch import Tensor, nn

from unsmooth.evidence.claims.of_trained_models import DECIDES, REGISTERED
from unsmooth.explaining import Explanation
from unsmooth.explaining.jacobian import Split
from unsmooth.explaining.run import views_of
from unsmooth.explaining.tiers import logit_similarity
from unsmooth.functional import effective_rank, mean_cosine
from unsmooth.models import Anatomy, find_anatomy
from unsmooth.models.block_parts import adds_one
from unsmooth.scanning.calling import quiet_evaluation
from unsmooth.scanning.data import Source


@dataclass(frozen=True)
class Curves:
    """What explanations do not hold of a model: one number per layer, the embedding first, and the ablation.

    Args:
        cosine: Mean cosine of the tokens, mean over sequences.
        rank: Effective rank of the tokens, mean over sequences.
        negative: How many weights of norms in the blocks are negative, and of how many.
        logit: Logit t_sim at the last layer, mean over sequences.
        logit_without: The same with every negative weight set to its modulus; None where there is none.
    """

    cosine: list[float]
    rank: list[float]
    negative: tuple[int, int]
    logit: float
    logit_without: float | None


def measure_curves(model: nn.Module, source: Source, batches: int) -> Curves:
    """Measure a model on the first `batches` of `source`."""
    anatomy = find_anatomy(model)
    streams = list(_streams(anatomy, source, batches))
    depth = len(streams[0][1])
    cosine, rank = (
        [_mean([of(layers[layer], real_BN) for real_BN, layers in streams]) for layer in range(depth)]
        for of in (mean_cosine, effective_rank)
    )
    negative = count_negative(anatomy)
    without = None
    if negative[0]:
        with positive_norms(anatomy):
            without = _last_logit(_streams(anatomy, source, batches))
    return Curves(cosine, rank, negative, _last_logit(streams), without)


def _streams(anatomy: Anatomy, source: Source, batches: int) -> Iterator[tuple[Tensor, list[Tensor]]]:
    """Of each batch which tokens are real, and the stream at every layer."""
    with quiet_evaluation(anatomy.model):
        for _, views in islice(views_of([anatomy], source, torch.device("cpu"), {}), batches):
            [(_, view, _)] = views
            outputs = [layer.sites["output"] for layer in view.layers]
            yield view.real_BN, [view.layers[0].sites["input"], *outputs]


def _last_logit(streams: Any) -> float:
    return _mean([logit_similarity(Split(real_BN), layers[-1]) for real_BN, layers in streams])


def _mean(parts: Sequence[Tensor]) -> float:
    return float(torch.cat(list(parts)).double().mean())


def count_negative(anatomy: Anatomy) -> tuple[int, int]:
    """Negative weights of the norms in the blocks, and all of them; of Gemma's, one is added first."""
    weights = [weight + offset for weight, offset in _norm_weights(anatomy)]
    return sum(int((one < 0).sum()) for one in weights), sum(one.numel() for one in weights)


@contextmanager
def positive_norms(anatomy: Anatomy) -> Iterator[None]:
    """Every weight of the norms in the blocks at its modulus, for a while."""
    was = [(weight, weight.clone()) for weight, _ in _norm_weights(anatomy)]
    try:
        for weight, offset in _norm_weights(anatomy):
            weight.copy_((weight + offset).abs() - offset)
        yield
    finally:
        for weight, before in was:
            weight.copy_(before)


def _norm_weights(anatomy: Anatomy) -> list[tuple[Tensor, float]]:
    """The weights themselves, each once, and what its norm adds to them."""
    modules = (module for block in anatomy.blocks.values() for module in block.modules())
    norms = dict.fromkeys(module for module in modules if type(module).__name__.endswith("Norm"))
    return [
        (norm.weight.data, 1.0 if adds_one(norm) else 0.0)
        for norm in norms
        if isinstance(getattr(norm, "weight", None), Tensor)
    ]


def dominance_and_change(found: Explanation, curves: Curves) -> float | None:
    """Spearman's correlation of each layer's share of smoothing heads with its change of logit t_sim."""
    heads = {
        one.layer: [head.verdict == "smoothing" for head in found.heads if head.layer == one.layer]
        for one in found.layers
    }
    pairs = [
        (numpy.mean(heads[one.layer]), one.logit_change)
        for one in found.layers
        if heads[one.layer] and one.logit_change is not None
    ]
    if len(pairs) < 3:
        return None
    shares, changes = zip(*pairs, strict=True)
    return float(spearmanr(shares, changes).statistic) if len(set(shares)) > 1 else 0.0


def heads_not_smoothing(found: Explanation, curves: Curves) -> float | None:
    """Share of the heads with another verdict."""
    known = [head for head in found.heads if head.rest_modulus is not None]
    return float(numpy.mean([head.verdict != "smoothing" for head in known])) if known else None


def second_eigenvalue(found: Explanation, curves: Curves) -> float | None:
    """Mean |λ₂| over heads and layers."""
    known = [head.second_eigenvalue for head in found.heads if head.second_eigenvalue is not None]
    return float(numpy.mean(known)) if known else None


def heads_beyond_chance(found: Explanation, curves: Curves) -> float | None:
    """Share of the heads above what one in twenty random softmax maps exceeds."""
    known = [
        head.second_eigenvalue > head.softmax_second_eigenvalue
        for head in found.heads
        if head.second_eigenvalue is not None and head.softmax_second_eigenvalue is not None
    ]
    return float(numpy.mean(known)) if known else None


def angle_rate(found: Explanation, curves: Curves) -> float | None:
    """Slope over layers of log(1 − mean cosine)."""
    return slope([math.log(1.0 - value) for value in curves.cosine])


def rank_rate(found: Explanation, curves: Curves) -> float | None:
    """Slope over layers of log effective rank."""
    return slope([math.log(value) for value in curves.rank])


def slope(values: Sequence[float]) -> float:
    """Least-squares slope per step.

    >>> slope([1.0, 3.0, 5.0])
    2.0
    """
    return round(float(numpy.polyfit(range(len(values)), values, 1)[0]), 12)


def negative_weights_effect(found: Explanation, curves: Curves) -> float | None:
    """Modulus of the change of logit t_sim at the last layer; None for a model without negative weights."""
    return None if curves.logit_without is None else abs(curves.logit_without - curves.logit)


QUANTITIES: Mapping[str, Callable[[Explanation, Curves], float | None]] = {
    one.__name__: one
    for one in (
        dominance_and_change,
        heads_not_smoothing,
        second_eigenvalue,
        heads_beyond_chance,
        angle_rate,
        rank_rate,
        negative_weights_effect,
    )
}


def registered_rows(
    models: Sequence[tuple[Explanation, Curves]], lineages: Mapping[str, str], ours: Sequence[str]
) -> list[dict[str, Any]]:
    """One row per registered claim: its number by lineage, the mean of the lineage's models; those trained here apart.

    Args:
        models: What was measured of each.
        lineages: Model to lineage, for those that were trained from one another.
        ours: Names of the models that were trained here.
    """
    rows = []
    for claim, one in REGISTERED.items():
        values: dict[bool, dict[str, list[float]]] = {True: {}, False: {}}
        for found, curves in models:
            value = QUANTITIES[one["quantity"]](found, curves)
            if value is not None:
                values[found.name in ours].setdefault(lineages.get(found.name, found.name), []).append(value)
        public, here = ({name: float(numpy.mean(each)) for name, each in values[own].items()} for own in (False, True))
        rows.append({"id": claim, **{key: one[key] for key in DECIDES}, "lineages": public, "ours": here})
    return rows
