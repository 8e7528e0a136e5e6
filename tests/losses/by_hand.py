"""Every loss once more, written out with loops over pairs in plain Python numbers."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy
from torch import Tensor

Rows = list[numpy.ndarray]


def sequences(x: Tensor, mask: Tensor | None) -> list[Rows]:
    """The real tokens of each sequence, float64."""
    kept = [[True] * x.shape[1]] * x.shape[0] if mask is None else mask.tolist()
    return [
        [token.double().numpy() for token, real in zip(rows, reals, strict=True) if real]
        for rows, reals in zip(x.detach(), kept, strict=True)
    ]


def cos(a: numpy.ndarray, b: numpy.ndarray) -> float:
    lengths = math.sqrt(float(a @ a)) * math.sqrt(float(b @ b))
    return float(a @ b) / lengths if lengths else 0.0


def averaged(all_rows: list[Rows], of_one: Callable[[Rows], float], at_least: int = 2) -> float:
    values = [of_one(rows) for rows in all_rows if len(rows) >= at_least]
    return sum(values) / len(values) if values else 0.0


def cosine(rows: Rows, absolute: bool = False, over_square: bool = False) -> float:
    n, total = len(rows), 0.0
    for i in range(n):
        for j in range(n):
            if i != j:
                value = cos(rows[i], rows[j])
                total += abs(value) if absolute else value
    return total / (n * n if over_square else n * (n - 1))


def laplacian(rows: Rows, temperature: float) -> float:
    energy = weights = 0.0
    for i, a in enumerate(rows):
        for j, b in enumerate(rows):
            if i != j:
                weight = math.exp(cos(a, b) / temperature)
                energy, weights = energy + weight * (1 - cos(a, b)), weights + weight
    return -energy / weights


def layer_contrast(rows: Rows, first: Rows, temperature: float, neighbourhood: int = 0) -> float:
    n, total, side = len(rows), 0.0, math.isqrt(len(rows))
    for i in range(n):
        others = sum(rows[j] for j in range(n) if j != i) / (n - 1)
        logits = [float(first[i] @ rows[i]), float(first[i] @ others)]
        if neighbourhood:
            half, around = neighbourhood // 2, numpy.zeros_like(rows[0])
            for down in range(-half, half + 1):
                for right in range(-half, half + 1):
                    row, column = i // side + down, i % side + right
                    if (down or right) and 0 <= row < side and 0 <= column < side:
                        around = around + rows[row * side + column]
            logits.append(float(first[i] @ around) / (neighbourhood**2 - 1))
        exponentials = [math.exp(logit / temperature) for logit in logits]
        total -= math.log(exponentials[0] / sum(exponentials))
    return total / n


def spectrum(rows: Rows, target: Callable[[int], float], scale: float | None) -> float:
    matrix = numpy.stack(rows)
    values = numpy.linalg.svd(matrix, compute_uv=False)
    scale = values[0] if scale is None else scale
    return sum((value / scale - target(k)) ** 2 for k, value in enumerate(values, start=1)) / len(values)


def simcse(one: Rows, two: Rows, temperature: float) -> float:
    total = 0.0
    for i, z in enumerate(one):
        exponentials = [math.exp(cos(z, other) / temperature) for other in two]
        total -= math.log(exponentials[i] / sum(exponentials))
    return total / len(one)


def duorec(one: Rows, two: Rows, temperature: float, cosines: bool) -> float:
    views, batch, total = [*one, *two], len(one), 0.0
    for i, z in enumerate(views):
        alike = [cos(z, other) if cosines else float(z @ other) for other in views]
        exponentials = [math.exp(value / temperature) for value in alike]
        own = exponentials[(i + batch) % (2 * batch)]
        total -= math.log(own / (sum(exponentials) - exponentials[i]))
    return total / (2 * batch)


def dispersion(rows: Rows, form: str, temperature: float, margin: float, with_self: bool) -> float:
    if form == "covariance":
        units = numpy.stack([row / math.sqrt(float(row @ row)) for row in rows])
        covariance = numpy.cov(units.T, bias=True)
        return float((covariance**2).sum() - (numpy.diag(covariance) ** 2).sum())
    total, pairs = 0.0, 0
    for i, a in enumerate(rows):
        for j, b in enumerate(rows):
            if i == j and not with_self:
                continue
            distance = -cos(a, b) if form == "cosine" else float((a - b) @ (a - b)) / len(a)
            total += max(0.0, margin - distance) ** 2 if form == "hinge" else math.exp(-distance / temperature)
            pairs += 1
    return total / pairs if form == "hinge" else math.log(total / pairs)
