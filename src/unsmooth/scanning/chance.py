"""What independent tokens would give at the lengths and width that were scanned, and equal ones that are rounded."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from unsmooth.functional import BoundMetric

_SEQUENCES = 8
_SEED = 0
# Simulated lengths are capped: beyond it a rank metric costs more than the scan.
_LONGEST = 1024
_ROUNDED = (64, 256)


def chance_level(metric: BoundMetric, lengths: Mapping[int, int], dim: int) -> float | None:
    """Mean chance level over the scanned sequences, None where the metric has none.

    The closed form where the metric declares one; for a scale-free metric without one, or with options that
    change it, the mean of a few simulated Gaussian sequences of the mean length.

    Args:
        metric: The metric with its options.
        lengths: Number of tokens to number of sequences that had so many.
        dim: Number of features.
    """
    sequences = sum(lengths.values())
    if not sequences or metric.metric.reads not in ("tokens", "sequences"):
        return None
    closed = metric.metric.chance
    if closed is not None and not metric.options:
        return sum(closed(float(length), dim) * count for length, count in lengths.items()) / sequences
    if metric.metric.reads != "tokens" or "scale" not in metric.metric.invariances:
        return None
    mean_length = sum(length * count for length, count in lengths.items()) / sequences
    generator = torch.Generator().manual_seed(_SEED)
    x = torch.randn(_SEQUENCES, min(round(mean_length), _LONGEST), dim, generator=generator)
    return float(metric(x).mean())


def rounding_level(metric: BoundMetric, dtype: torch.dtype, dim: int) -> float | None:
    r"""What a metric that is 0 for equal tokens gives where each is rounded to `dtype` on its own; None for others.

    Simulated; of the diversity it is about ε²/24. To the nearest of numbers that lie q apart an error has the variance
    q²/12, and in [2^e, 2^{e+1}) they lie q = ε·2^e apart. For x = m·2^e with log m evenly spread over [0, log 2),
    E[q²]/E[x²] = ε²/E[m²] = ε²·(2 ln 2)/3 = 0.46 ε²; numbers that all have the same m give a quarter to all of ε².

    A true value at this level is measured as about twice as much, and one below it as even more times too much: tokens
    are then drawn to the same number or torn to neighbouring ones. What a model's own arithmetic rounds comes on top.

    >>> from unsmooth.functional import parse_metric
    >>> diversity = parse_metric("token_diversity")
    >>> [f"{rounding_level(diversity, dtype, 256):.0e}" for dtype in (torch.bfloat16, torch.float16, torch.float32)]
    ['3e-06', '4e-08', '6e-16']
    """
    if metric.metric.reads != "tokens" or metric.metric.rises_when_alike is not False:
        return None
    tokens, width = _ROUNDED
    generator = torch.Generator().manual_seed(_SEED)
    shape = 1, tokens, min(dim, width)
    equal = torch.randn(1, 1, shape[2], generator=generator, dtype=torch.float64).expand(shape)
    if float(metric(equal)) != 0.0:
        return None
    # Spread over several of the numbers that the type has, errors are as if drawn.
    spread = 1.0 + 16.0 * torch.finfo(dtype).eps * torch.rand(shape, generator=generator, dtype=torch.float64)
    rounded = equal + (equal * spread).to(dtype).double() - equal * spread
    level = float(metric(rounded))
    # What follows the scale of the stream has no level of its own; options may take the scale out.
    return level if level and level == float(metric(4.0 * rounded)) else None
