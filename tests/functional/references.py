"""Every metric once more, in float64 numpy and straight from its definition: what the fast code must agree with.

A metric joins all tests of this folder by one entry in `ENTRIES`. References get the real tokens of one sequence
(n×d), or its real×real attention (heads×n×n), and know nothing about masks, batches or torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]

_BLOCK = 500


@dataclass(frozen=True)
class Entry:
    """The reference of a metric, the option settings to test, and its values where the definition is 0/0.

    `zero` is the value of an all-zero and of an empty sequence. `longest` is the most tokens on which the metric and
    its reference look at the same pairs.
    """

    reference: Callable[..., Any]
    single: float
    zero: float
    options: tuple[dict[str, Any], ...] = ({},)
    longest: int = 20_000


def _mean(x: Matrix) -> Matrix:
    total = np.zeros(x.shape[1])
    for token in x:
        total = total + token
    return total / len(x)


def _all_equal(x: Matrix) -> bool:
    return bool((x == x[:1]).all())


def mean_cosine(x: Matrix, absolute: bool = False, with_self: bool = False) -> float:
    length = np.sqrt((x**2).sum(axis=1, keepdims=True))
    unit = np.divide(x, length, out=np.zeros_like(x), where=length > 0)
    if len(x) == 1:
        return float(unit[0] @ unit[0])
    total = 0.0
    for start in range(0, len(x), _BLOCK):
        cosines = unit[start : start + _BLOCK] @ unit.T
        cosines = np.abs(cosines) if absolute else cosines
        if not with_self:
            cosines[np.arange(len(cosines)), start + np.arange(len(cosines))] = 0.0
        total += cosines.sum()
    return total / (len(x) ** 2 if with_self else len(x) * (len(x) - 1))


def token_similarity(x: Matrix, squared: bool = True) -> float:
    shared = len(x) * (_mean(x) ** 2).sum()
    whole = sum(float(token @ token) for token in x)
    return 1.0 if whole == 0 else (shared / whole if squared else math.sqrt(shared / whole))


def token_diversity(x: Matrix, squared: bool = True) -> float:
    whole = sum(float(token @ token) for token in x)
    if whole == 0 or _all_equal(x):
        return 0.0
    mean = _mean(x)
    share = sum(float((token - mean) @ (token - mean)) for token in x) / whole
    if squared or share >= 1.0:
        return share
    return -math.expm1(math.log1p(-share) / 2.0)  # 1 − √(1 − share)


def hfc_lfc(x: Matrix) -> float:
    energy = (np.abs(np.fft.fft(x, axis=0)) ** 2).sum(axis=1)
    return 0.0 if energy.sum() == 0 else math.sqrt(energy[1:].sum() / energy[0])


def rank_one_residual(x: Matrix, norm: str = "composite", centre: str = "mean") -> float:
    """The argmin of the composite norm has a test of its own, in `test_relations`."""

    def size(matrix: Matrix) -> float:
        if norm == "frobenius":
            return float(np.linalg.norm(matrix, "fro"))
        return math.sqrt(np.linalg.norm(matrix, 1) * np.linalg.norm(matrix, np.inf))

    return 0.0 if not x.any() else size(x - _mean(x)) / size(x)


def dirichlet_energy(x: Matrix, normalised: bool = False) -> float:
    total = 0.0
    for i in range(len(x) - 1):
        total += 2.0 * ((x[i + 1 :] - x[i]) ** 2).sum()
    energy = total / (2 * len(x))
    return energy / (x**2).sum() if normalised and x.any() else energy


def mean_distance(x: Matrix) -> float:
    total = 0.0
    for i in range(len(x) - 1):
        total += 2.0 * np.sqrt(((x[i + 1 :] - x[i]) ** 2).sum(axis=1)).sum()
    return total / (len(x) * (len(x) - 1)) if len(x) > 1 else 0.0


def _singular_values(x: Matrix) -> list[float]:
    return [float(value) for value in np.linalg.svd(x, full_matrices=False)[1]]


def effective_rank(x: Matrix) -> float:
    values = _singular_values(x)
    if sum(values) == 0:
        return 0.0
    return math.exp(-sum(v / sum(values) * math.log(v / sum(values)) for v in values if v > 0))


def stable_rank(x: Matrix) -> float:
    return float((x**2).sum() / np.linalg.norm(x, 2) ** 2) if x.any() else 0.0


def numerical_rank(x: Matrix, epsilon: float, tolerance: float | None = None) -> float:
    values = _singular_values(x)
    threshold = epsilon * np.linalg.norm(x, "fro") if tolerance is None else tolerance * values[0]
    return float(sum(value > max(threshold, 1e-13 * values[0]) for value in values))


def participation_ratio(x: Matrix, centred: bool = True) -> float:
    if centred and _all_equal(x):
        return 0.0
    covariance = np.cov(x.T, bias=True).reshape(x.shape[1], -1) if centred else x.T @ x
    variances = np.linalg.eigvalsh(covariance)
    return float(variances.sum() ** 2 / (variances**2).sum()) if x.any() else 0.0


def isoscore(x: Matrix) -> float:
    """The steps of Rudman et al. 2022: principal components, normalised diagonal, defect, rescaling."""
    if _all_equal(x):
        return 0.0
    d = x.shape[1]
    centred = x - x.mean(axis=0)
    components = np.linalg.eigh(np.cov(centred.T))[1]
    diagonal = np.diag(np.cov((centred @ components).T))
    normalised = math.sqrt(d) * diagonal / np.linalg.norm(diagonal)
    defect = np.linalg.norm(normalised - np.ones(d)) / math.sqrt(2 * (d - math.sqrt(d)))
    share_of_dimensions = (d - defect**2 * (d - math.sqrt(d))) ** 2 / d**2
    return float((d * share_of_dimensions - 1) / (d - 1))


def singular_skewness(x: Matrix) -> float:
    values = _singular_values(x)
    mean = sum(values) / len(values)
    deviation = math.sqrt(sum((v - mean) ** 2 for v in values) / len(values))
    if deviation <= 1e-12 * max(values):
        return 0.0
    return sum(((v - mean) / deviation) ** 3 for v in values) / len(values)


def escalation_rate(x: Matrix, y: Matrix, squared: bool = True) -> float:
    before = token_diversity(x, squared)
    return 0.0 if before == 0 else 1.0 - token_diversity(y, squared) / before


def linear_cka(x: Matrix, y: Matrix) -> float:
    if _all_equal(x) or _all_equal(y):
        return 0.0
    split = x.shape[1]
    covariance = np.cov(np.hstack([x, y]).T)
    own = np.linalg.norm(covariance[:split, :split]) * np.linalg.norm(covariance[split:, split:])
    return float(np.linalg.norm(covariance[split:, :split]) ** 2 / own)


def attention_entropy(attention: Matrix, causal: bool | None = None) -> float:
    heads, n, _ = attention.shape
    if causal is None:
        causal = all(attention[h, i, j] == 0 for h in range(heads) for i in range(n) for j in range(i + 1, n))
    rows = []
    for head in attention:
        for i in range(n):
            visible = i + 1 if causal else n
            if visible > 1:
                rows.append(-sum(a * math.log(a) for a in head[i] if a > 0) / math.log(visible))
    return sum(rows) / len(rows) if rows else 0.0


def attention_sink(attention: Matrix) -> float:
    return float(np.mean([row[0] for head in attention for row in head]))


def feature_map_variance(x: Matrix, unbiased: bool = True) -> float:
    if len(x) == 1:
        return 0.0
    return float(np.mean([np.var(channel, ddof=1 if unbiased else 0) for channel in x.T]))


def intra_sentence_similarity(x: Matrix) -> float:
    mean = _mean(x)
    cosines = []
    for token in x:
        sizes = math.sqrt(token @ token) * math.sqrt(mean @ mean)
        cosines.append(float(token @ mean) / sizes if sizes > 0 else 0.0)
    return sum(cosines) / len(cosines)


def cosine_quantile(x: Matrix, q: float = 0.5, absolute: bool = False, pairs: int = 2048, seed: int = 0) -> float:
    """Of all pairs: the tests stay below the number from which on there is a draw."""
    assert len(x) * (len(x) - 1) // 2 <= pairs
    cosines = []
    for i in range(len(x)):
        for j in range(i + 1 if len(x) > 1 else i, len(x)):
            sizes = math.sqrt(x[i] @ x[i]) * math.sqrt(x[j] @ x[j])
            cosine = float(x[i] @ x[j]) / sizes if sizes > 0 else 0.0
            cosines.append(abs(cosine) if absolute else cosine)
    return float(np.quantile(cosines, q))


def head_similarity(attention: Matrix, causal: bool | None = None) -> float:
    heads, n, _ = attention.shape
    if not attention.any():
        return 0.0
    if causal is None:
        causal = all(attention[h, i, j] == 0 for h in range(heads) for i in range(n) for j in range(i + 1, n))
    cosines = []
    for i in range(1 if causal or n == 1 else 0, n):
        for g in range(heads):
            for h in range(heads):
                if g != h:
                    sizes = np.linalg.norm(attention[g, i]) * np.linalg.norm(attention[h, i])
                    cosines.append(float(attention[g, i] @ attention[h, i]) / sizes if sizes > 0 else 0.0)
    return sum(cosines) / len(cosines) if cosines else 1.0


def relative_log_amplitude(x: Matrix, grid: tuple[int, int] | None = None, diagonal: bool = True) -> float:
    return log_amplitude_curve(x, grid, diagonal)[-1]


def log_amplitude_curve(x: Matrix, grid: tuple[int, int] | None = None, diagonal: bool = True) -> list[float]:
    """The Fourier sum written out, one frequency at a time."""
    height, width = grid or (math.isqrt(len(x)), math.isqrt(len(x)))
    side, picture = min(height, width), x.reshape(height, width, -1)
    rows, columns = np.meshgrid(np.arange(height), np.arange(width), indexing="ij")

    def level(v: int, u: int) -> float:
        wave = np.exp(-2j * math.pi * (v * rows / height + u * columns / width))
        amplitudes = [abs((picture[:, :, channel] * wave).sum()) for channel in range(x.shape[1])]
        return float(np.mean([math.log(amplitude + 1e-6) for amplitude in amplitudes]))

    def distance(v: int, u: int) -> int:
        return round(side * math.hypot(min(v, height - v) / height, min(u, width - u) / width))

    curve = []
    for step in range((side + 1) // 2):
        if diagonal:
            curve.append(level(round(step * height / side), round(step * width / side)))
        else:
            ring = [(v, u) for v in range(height) for u in range(width) if distance(v, u) == step]
            curve.append(float(np.mean([level(v, u) for v, u in ring])))
    return [value - curve[0] for value in curve]


def _contexts(x: Matrix, words: list[list[int]], least: int) -> dict[int, Matrix]:
    """The vectors of each word, one per different sequence; x is sequences of vectors, without padding."""
    found: dict[int, list[Matrix]] = {}
    seen: set[tuple[int, ...]] = set()
    for sentence, vectors in zip(words, x, strict=True):
        if tuple(sentence) in seen:
            continue
        seen.add(tuple(sentence))
        for word in set(sentence):
            found.setdefault(word, []).append(vectors[sentence.index(word)])
    return {word: np.array(found[word]) for word in sorted(found) if len(found[word]) >= least}


def self_similarity(x: Matrix, words: list[list[int]], contexts: int = 5) -> list[float]:
    return [mean_cosine(vectors) for vectors in _contexts(x, words, contexts).values()]


def maximum_explainable_variance(
    x: Matrix, words: list[list[int]], contexts: int = 5, centred: bool = True
) -> list[float]:
    values = []
    for vectors in _contexts(x, words, contexts).values():
        matrix = vectors - vectors.mean(axis=0) if centred else vectors
        squares = np.linalg.svd(matrix, compute_uv=False) ** 2
        values.append(1.0 if centred and _all_equal(vectors) else float(squares[0] / squares.sum()))
    return values


def random_pair_cosine(x: list[Matrix]) -> float:
    """Sequences are weighed alike, however long they are."""
    pairs = []
    for s, one in enumerate(x):
        for t, other in enumerate(x):
            if s != t:
                pairs.append(np.mean([mean_cosine(np.array([a, b])) for a in one for b in other]))
    return float(np.mean(pairs)) if pairs else math.nan


_SQUARED: tuple[dict[str, Any], ...] = ({}, {"squared": False})

ENTRIES: dict[str, Entry] = {
    "mean_cosine": Entry(
        mean_cosine,
        single=1.0,
        zero=0.0,
        options=({}, {"absolute": True}, {"with_self": True}, {"absolute": True, "with_self": True}),
    ),
    "token_similarity": Entry(token_similarity, single=1.0, zero=1.0, options=_SQUARED),
    "token_diversity": Entry(token_diversity, single=0.0, zero=0.0, options=_SQUARED),
    "hfc_lfc": Entry(hfc_lfc, single=0.0, zero=0.0),
    "rank_one_residual": Entry(
        rank_one_residual,
        single=0.0,
        zero=0.0,
        options=({}, {"norm": "frobenius"}, {"norm": "frobenius", "centre": "argmin"}),
    ),
    "dirichlet_energy": Entry(dirichlet_energy, single=0.0, zero=0.0, options=({}, {"normalised": True})),
    "mean_distance": Entry(mean_distance, single=0.0, zero=0.0),
    "effective_rank": Entry(effective_rank, single=1.0, zero=0.0),
    "stable_rank": Entry(stable_rank, single=1.0, zero=0.0),
    "numerical_rank": Entry(numerical_rank, single=1.0, zero=0.0, options=({}, {"tolerance": 0.3})),
    "participation_ratio": Entry(participation_ratio, single=0.0, zero=0.0, options=({}, {"centred": False})),
    "isoscore": Entry(isoscore, single=0.0, zero=0.0),
    "singular_skewness": Entry(singular_skewness, single=0.0, zero=0.0),
    "escalation_rate": Entry(escalation_rate, single=0.0, zero=0.0, options=_SQUARED),
    "linear_cka": Entry(linear_cka, single=0.0, zero=0.0),
    "attention_entropy": Entry(
        attention_entropy, single=0.0, zero=0.0, options=({}, {"causal": True}, {"causal": False})
    ),
    "attention_sink": Entry(attention_sink, single=1.0, zero=0.0),
    "feature_map_variance": Entry(feature_map_variance, single=0.0, zero=0.0, options=({}, {"unbiased": False})),
    "intra_sentence_similarity": Entry(intra_sentence_similarity, single=1.0, zero=0.0),
    "cosine_quantile": Entry(
        cosine_quantile,
        single=1.0,
        zero=0.0,
        options=({}, {"q": 0.9}, {"q": 0.1, "absolute": True}, {"pairs": 1770, "seed": 3}),
        longest=60,
    ),
    "relative_log_amplitude": Entry(
        relative_log_amplitude, single=0.0, zero=0.0, options=({}, {"diagonal": False}, {"grid": (4, 4)})
    ),
    "self_similarity": Entry(self_similarity, single=math.nan, zero=0.0, options=({}, {"contexts": 2})),
    "maximum_explainable_variance": Entry(
        maximum_explainable_variance,
        single=math.nan,
        zero=1.0,
        options=({}, {"contexts": 3}, {"contexts": 3, "centred": False}),
    ),
    "random_pair_cosine": Entry(random_pair_cosine, single=math.nan, zero=0.0),
    "head_similarity": Entry(head_similarity, single=1.0, zero=0.0, options=({}, {"causal": True}, {"causal": False})),
}
