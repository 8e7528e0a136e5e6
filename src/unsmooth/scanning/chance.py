"""What independent tokens would give, at the lengths and width that were scanned."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from unsmooth.functional import BoundMetric

_SEQUENCES = 8
_SEED = 0
# Simulated lengths are capped: beyond it a rank metric costs more than the scan.
_LONGEST = 1024


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
