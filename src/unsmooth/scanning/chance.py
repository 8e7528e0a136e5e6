"""What independent tokens would give, at the lengths and width that were scanned."""

from __future__ import annotations

import torch
from torch import Tensor

from unsmooth.functional import BoundMetric

_SEQUENCES = 8
_SEED = 0
# Simulated lengths are capped: beyond it a rank metric costs more than the scan.
_LONGEST = 1024


def chance_level(metric: BoundMetric, lengths: Tensor, dim: int) -> float | None:
    """Mean chance level over the scanned sequences, None where the metric has none.

    The closed form where the metric declares one; for a scale-free metric without one, or with options that
    change it, the mean of a few simulated Gaussian sequences of the mean length.

    Args:
        metric: The metric with its options.
        lengths: How many sequences had 0, 1, 2, … tokens.
        dim: Number of features.
    """
    present = lengths.nonzero().flatten().tolist()
    if not present or metric.metric.reads != "tokens":
        return None
    weights = lengths[present].double()
    closed = metric.metric.chance
    if closed is not None and not metric.options:
        levels = torch.tensor([closed(float(length), dim) for length in present], dtype=torch.float64)
        return float((levels * weights).sum() / weights.sum())
    if "scale" not in metric.metric.invariances:
        return None
    mean_length = float((torch.tensor(present, dtype=torch.float64) * weights).sum() / weights.sum())
    generator = torch.Generator().manual_seed(_SEED)
    x = torch.randn(_SEQUENCES, min(round(mean_length), _LONGEST), dim, generator=generator)
    return float(metric(x).mean())
