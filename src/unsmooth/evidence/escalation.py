"""How fast random layers make tokens alike: one step from tokens of a given similarity, and many steps.

The layer is Y = X + PXW with W zero-mean and E[WWᵀ] = I (Yu & Zhang 2023, arXiv 2312.06182).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy
import torch
from torch import Tensor

from unsmooth.errors import expected, unknown_name
from unsmooth.functional import escalation_rate, token_diversity
from unsmooth.spectra import attention_spectrum
from unsmooth.theory import cyclic_attention, iterate, random_attention
from unsmooth.theory.maps import drawn, lazy_attention

# Diversity below which float64 no longer tells tokens apart as it should, and below which most energy is shared.
FLOOR, SHARED = 1e-12, 0.5
LAYERS = 1_000
# Streams of random numbers that must not meet: tokens, weights, maps.
TOKENS, WEIGHTS, MAPS = 10_000_000, 20_000_000, 30_000_000


@dataclass(frozen=True)
class Cell:
    """One step.

    Args:
        map: "lazy" or "cyclic", whose eigenvalues but the first all have one modulus, or "softmax".
        value: That modulus; of "softmax" the standard deviation of its logits.
        tokens: How many.
        similarity: t_sim before the step.
    """

    map: str
    value: float
    tokens: int
    similarity: float


@dataclass(frozen=True)
class Stack:
    """Many steps, with weights and softmax maps of their own in each.

    Args:
        map: As in `Cell`.
        value: As in `Cell`.
        residual: Whether X stays in the sum.
        norm: Whether a norm stands behind the addition.
    """

    map: str
    value: float
    residual: bool = True
    norm: bool = False

    @property
    def name(self) -> str:
        """For people."""
        map = f"softmax of logits of std {self.value:g}" if self.map == "softmax" else f"{self.map} {self.value:g}"
        return f"{map}{'' if self.residual else ' without residual'}{' with post-norm' if self.norm else ''}"


def bound(similarity: float, second: float) -> float:
    r"""Least mean escalation rate to expect, :math:`s(1 - |\lambda_2|^2)/2`.

    >>> bound(0.5, 0.6)
    0.16
    """
    return similarity * (1.0 - second**2) / 2.0


def closed_form(similarity: float, second: float) -> float:
    r"""Escalation rate of the expected energies, :math:`s(1 - |\lambda_2|^2)/(1 + s + |\lambda_2|^2(1 - s))`.

    >>> closed_form(0.5, 0.0)  # the mean's energy doubles, the rest stays: t_div falls from 1/2 to 1/3
    0.3333333333333333
    """
    return similarity * (1.0 - second**2) / (1.0 + similarity + second**2 * (1.0 - similarity))


def slack(similarity: float, second: float, width: int) -> float:
    r"""How far the mean of a ratio may lie beneath the ratio of means at width d, to second order.

    With A the energy of the mean and B that of the rest after the step, E[B/(A + B)] exceeds EB/(EA + EB) by
    EB·Var A/(EA + EB)³, and for normal weights Var A = 6s²/d, EA = 2s, EB = (1 + |λ₂|²)(1 − s). Over t_div = 1 − s:

    .. math:: \frac{6 s^2 (1 + |\lambda_2|^2)}{d\,(2s + (1 + |\lambda_2|^2)(1 - s))^3}

    >>> slack(1.0, 0.0, 75)
    0.01
    """
    rest = 1.0 + second**2
    return 6.0 * similarity**2 * rest / (width * (2.0 * similarity + rest * (1.0 - similarity)) ** 3)


def tokens_with(similarity: float, tokens: int, width: int, seed: int) -> Tensor:
    """Random tokens (n, d) of energy 1 whose t_sim is just that.

    >>> x = tokens_with(0.25, 4, 3, seed=0)
    >>> round(4 * x.mean(dim=0).square().sum().item(), 12), round(x.square().sum().item(), 12)
    (0.25, 1.0)
    """
    return _joined(drawn(tokens, width, seed=TOKENS + 2 * seed), similarity, seed)


def _joined(differences_ND: Tensor, similarity: float, seed: int) -> Tensor:
    """These differences between tokens and a random mean, each with its share of the energy."""
    rest_ND = differences_ND - differences_ND.mean(dim=0)
    mean_1D = drawn(1, rest_ND.shape[1], seed=TOKENS + 2 * seed + 1)
    share = math.sqrt(similarity / len(rest_ND)) * mean_1D / mean_1D.norm()
    joined: Tensor = math.sqrt(1.0 - similarity) * rest_ND / rest_ND.norm() + share
    return joined


def one_step(cells: Sequence[Cell], seeds: Sequence[int], width: int, draws: int) -> list[dict[str, Any]]:
    """Mean escalation rate over draws of W, one per seed, for each cell; weights of a seed serve all cells.

    Returns:
        Of each cell what it is, and "rate" and "excess" over the bound per seed, "closed" and "slack".
    """
    found: list[dict[str, Any]] = [{**vars(cell), "rate": [], "excess": []} for cell in cells]
    seconds: list[list[float]] = [[] for _ in cells]
    for seed in seeds:
        weights_RDD = _weights(seed, width, draws)
        for cell, one, second in zip(cells, found, seconds, strict=True):
            map_NN = attention(cell.map, cell.value, cell.tokens, MAPS + seed)
            second.append(second_modulus(cell.map, cell.value, map_NN))
            x_ND = tokens_with(cell.similarity, cell.tokens, width, seed)
            one["rate"].append(mean_rate(x_ND, map_NN, weights_RDD))
            one["excess"].append(one["rate"][-1] - bound(cell.similarity, second[-1]))
    for cell, one, second in zip(cells, found, seconds, strict=True):
        mean = math.fsum(second) / len(second)
        one["closed"] = closed_form(cell.similarity, mean)
        one["slack"] = slack(cell.similarity, mean, width)
    return found


def mean_rate(x_ND: Tensor, map_NN: Tensor, weights_RDD: Tensor) -> float:
    """Mean over weights of the escalation rate from X to X + PXW.

    What the rate owes, to first order, to the energies A of the mean and B of the rest being other than expected is
    taken off: its own mean is zero, because EA and EB are known, and it makes up nearly all of the noise.
    """
    mixed_ND = map_NN @ x_ND
    after_RND = x_ND + mixed_ND @ weights_RDD
    rate_R = escalation_rate(x_ND.expand_as(after_RND), after_RND)
    shared_R, rest_R = _energies(after_RND)
    before, added = _energies(x_ND), _energies(mixed_ND)
    shared, rest = before[0] + added[0], before[1] + added[1]
    noise_R = (rest * (shared_R - shared) - shared * (rest_R - rest)) / (shared + rest) ** 2
    return float((rate_R - noise_R * (before[0] + before[1]) / before[1]).mean())


def _energies(x_ND: Tensor) -> tuple[Tensor, Tensor]:
    """‖ΠX‖² and ‖(I − Π)X‖²."""
    mean_1D = x_ND.mean(dim=-2, keepdim=True)
    return x_ND.shape[-2] * mean_1D.square().sum(dim=(-2, -1)), (x_ND - mean_1D).square().sum(dim=(-2, -1))


def attention(kind: str, value: float, tokens: int, seed: int) -> Tensor:
    """A map (n, n) of that kind; only "softmax" is random."""
    if kind == "lazy":
        return lazy_attention(tokens, value)
    if kind == "cyclic":
        return cyclic_attention(tokens, leak=1.0 - value)
    if kind == "softmax":
        return random_attention(tokens, seed=seed, logit_std=value)
    raise unknown_name("map", kind, ("lazy", "cyclic", "softmax"))


def second_modulus(kind: str, value: float, map_NN: Tensor) -> float:
    """|λ₂| of a map of that kind: known of the built ones, computed of the random one."""
    return float(attention_spectrum(map_NN[None]).second_eigenvalue) if kind == "softmax" else value


def decay(stack: Stack, seeds: Sequence[int], width: int, tokens: int) -> dict[str, Any]:
    """How t_div falls over the layers, from where most energy is shared to where numbers end.

    The prediction for log t_div per layer is log((1 + |λ₂|²)/2), of random maps the mean over a few; log |λ₂|² without
    the residual.

    Returns:
        Name, whether it is asked for by the claim's rule, and per seed "rate" (slope over prediction), "fit" (R²) and
        "halves" (slope of the second half over that of the first); "curve", t_div by layer, of the first seed.
    """
    found: dict[str, Any] = {"name": stack.name, "asked": stack.residual and not stack.norm}
    found |= {"rate": [], "fit": [], "halves": [], "curve": []}
    for seed in seeds:
        curve, predicted = _follow(stack, seed, width, tokens)
        slope, fit, halves = line(curve)
        found["rate"].append(slope / predicted)
        found["fit"].append(fit)
        found["halves"].append(halves)
        found["curve"] = found["curve"] or [value for value in curve if value > FLOOR]
    return found


def _follow(stack: Stack, seed: int, width: int, tokens: int) -> tuple[list[float], float]:
    """t_div by layer, the input first, and the slope of its logarithm to expect."""
    # Deep enough for the slowest: (1 + |λ₂|²)/2 per layer from about 1 to the floor, and a third more.
    modulus = stack.value if stack.map != "softmax" else math.sqrt(math.expm1(stack.value**2) / tokens)
    factor = (1.0 + modulus**2) / 2.0 if stack.residual else modulus**2
    depth = min(LAYERS, math.ceil(1.35 * math.log(FLOOR) / math.log(factor)) + 6)
    maps = [attention(stack.map, stack.value, tokens, MAPS + LAYERS * seed + layer) for layer in range(depth)]
    # One head more, with weights −I on the tokens themselves, takes the residual out again.
    own, gone = torch.eye(tokens, dtype=torch.float64), -torch.eye(width, dtype=torch.float64)

    def heads(layer: int) -> Tensor:
        return maps[layer][None] if stack.residual else torch.stack([maps[layer], own])

    def weights(layer: int) -> Tensor:
        drawn_DD = drawn(width, width, seed=WEIGHTS + LAYERS * seed + layer) / math.sqrt(width)
        return drawn_DD[None] if stack.residual else torch.stack([drawn_DD, gone])

    x_ND = drawn(tokens, width, seed=TOKENS + 2 * seed)
    passed = iterate(x_ND, heads, weights, depth=depth, norm="post" if stack.norm else None)
    seconds = [second_modulus(stack.map, stack.value, one) for one in maps[: 1 if stack.map != "softmax" else 8]]
    logs = [math.log((1.0 + one**2) / 2.0) if stack.residual else 2.0 * math.log(one) for one in seconds]
    return token_diversity(passed.states_LND).tolist(), math.fsum(logs) / len(logs)


def line(curve: Sequence[float]) -> tuple[float, float, float]:
    """Slope of log t_div over layers, R² of that line, and slope of the second half over that of the first.

    Only layers with t_div below 1/2 and above 1e-12 count.

    >>> slope, fit, halves = line([0.9, *(0.25**layer for layer in range(1, 10))])
    >>> round(slope, 6), round(fit, 6), round(halves, 6)  # log(1/4)
    (-1.386294, 1.0, 1.0)
    """
    layers = [layer for layer, value in enumerate(curve) if FLOOR < value < SHARED]
    if len(layers) < 4:
        raise expected("four layers at least with t_div in (1e-12, 0.5)", len(layers), "more layers")
    x, y = numpy.array(layers, dtype=float), numpy.log([curve[layer] for layer in layers])
    slope, start = numpy.polyfit(x, y, 1)
    left = float(((y - start - slope * x) ** 2).sum() / ((y - y.mean()) ** 2).sum())
    half = len(layers) // 2
    first, second = numpy.polyfit(x[:half], y[:half], 1)[0], numpy.polyfit(x[half:], y[half:], 1)[0]
    return float(slope), 1.0 - left, float(second / first)


def against_the_norm(seeds: Sequence[int], width: int, draws: int, tokens: int = 16) -> dict[str, list[float]]:
    """Where |λ₂| says too little: sharp softmax maps, with differences along the direction they shrink least.

    Returns:
        Per seed "norm" ‖(I − Π)P(I − Π)‖₂ and "second" |λ₂|, and the excess of the mean rate at s = 0.3 over the bound
        with "any" differences and with "chosen" ones, along the first singular vector.
    """
    found: dict[str, list[float]] = {"norm": [], "second": [], "any": [], "chosen": []}
    for seed in seeds:
        map_NN, weights_RDD = attention("softmax", 3.0, tokens, MAPS + seed), _weights(seed, width, draws)
        spectrum = attention_spectrum(map_NN[None])
        norm, second = float(spectrum.quotient_norm), float(spectrum.second_eigenvalue)
        centred_NN = map_NN - map_NN.mean(dim=0)
        direction_N = torch.linalg.svd(centred_NN - centred_NN.mean(dim=1, keepdim=True)).Vh[0]
        chosen_ND = _joined(direction_N[:, None] * drawn(1, width, seed=TOKENS + 2 * seed), 0.3, seed)
        for kind, x_ND in (("any", tokens_with(0.3, tokens, width, seed)), ("chosen", chosen_ND)):
            found[kind].append(mean_rate(x_ND, map_NN, weights_RDD) - bound(0.3, second))
        found["norm"].append(norm)
        found["second"].append(second)
    return found


def _weights(seed: int, width: int, draws: int) -> Tensor:
    return drawn(draws, width, width, seed=WEIGHTS + seed) / math.sqrt(width)
