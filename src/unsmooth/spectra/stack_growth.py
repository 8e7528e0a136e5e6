"""Growth over the real stack: weights and attention changing from layer to layer."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from unsmooth.errors import expected
from unsmooth.spectra._krylov import start_vector
from unsmooth.spectra.layer_operator import LayerOperator


def stack_growth(layers: Sequence[LayerOperator], passes: int = 6) -> tuple[float, float]:
    r"""Growth rates per layer, as logarithms, of the token mean and of what differs from it.

    Every layer is block triangular in mean and rest, and so is their product: the mean grows by Π_l (I + Σ_h H_h^l),
    the rest by the product of the layers' maps on it. A random start is sent through the stack again and again,
    brought back to length one after every layer, and the logarithms of its growth are averaged: the leading
    Lyapunov exponent, 1/L · log of the product's spectral radius. No layer need resemble another, unlike in
    P1 (arXiv 2401.04301), where weights and attention are the same in all.

    Args:
        layers: From first to last, of equal token count and width.
        passes: How often the stack is repeated; the first half is left out of the mean where there are two or more.

    Returns:
        The exponents of mean and rest, −∞ where a side dies out.

    Example:
        >>> maps, eye = torch.full((1, 3, 3), 1 / 3), torch.eye(2)[None]
        >>> mean, rest = stack_growth([LayerOperator(maps, eye, 0.5 * eye), LayerOperator(maps, eye, eye)])
        >>> round(mean, 4), abs(round(rest, 4))  # log(1.5 · 2) / 2, and averaging leaves the rest as it is
        (0.5493, 0.0)
    """
    if not layers or passes < 1:
        raise expected("a layer or more and a pass or more", f"{len(layers)} and {passes}", "all blocks of a model")
    n, d = layers[0].tokens, layers[0].dim
    if any((layer.tokens, layer.dim) != (n, d) for layer in layers):
        raise expected("layers of equal token count and width", "unequal ones", "the layers of one pass")
    means = [layer.mean_matrix().cpu() for layer in layers]
    rests = [layer.to(torch.float32) for layer in layers]
    start_D = _start(d, torch.zeros((), dtype=torch.float64))
    start_ND = _start(n * d, rests[0].w_v).reshape(n, d)
    start_ND = start_ND - start_ND.mean(dim=0)
    return (
        _exponent([_row_times(matrix) for matrix in means], start_D, passes),
        _exponent([layer.rest for layer in rests], start_ND, passes),
    )


def _start(size: int, like: Tensor) -> Tensor:
    # One number of mean zero is zero: such a start needs its own.
    return start_vector(size, like) if size > 1 else torch.ones(1).to(like)


def _row_times(matrix: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda row: row @ matrix


def _exponent(steps: Sequence[Callable[[Tensor], Tensor]], vector: Tensor, passes: int) -> float:
    """Mean log growth of the second half of the passes."""
    skipped = passes // 2
    total = 0.0
    vector = vector / vector.norm()
    for number in range(passes):
        for step in steps:
            vector = step(vector)
            length = float(vector.norm())
            if not length > 0.0:
                return -math.inf
            vector = vector / length
            total += math.log(length) if number >= skipped else 0.0
    return total / ((passes - skipped) * len(steps))
