"""Metrics by name: where one cannot be computed, the error says which, so that others can be."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from unsmooth.errors import UnsmoothError, expected
from unsmooth.functional import BoundMetric


class MetricError(UnsmoothError):
    """One metric cannot be computed; others may be.

    Args:
        message: In one line.
        metric: Its name.
        lasting: Whether it will be so next time too: it fits neither this model nor these data.
    """

    def __init__(self, message: str, metric: str = "", *, lasting: bool = True) -> None:
        super().__init__(message)
        self.metric, self.lasting = metric, lasting


def computed(metric: BoundMetric, *inputs: Any, **options: Any) -> Tensor:
    """The values of a metric, with options beside its own."""
    try:
        return metric.metric.function(*inputs, **{**options, **metric.options})
    except UnsmoothError as error:
        raise MetricError(str(error), metric.name) from error
    except (MemoryError, torch.OutOfMemoryError):
        raise  # which is nobody's fault alone
    except Exception as error:
        got = f"{type(error).__name__}: {' '.join(str(error).split())}".rstrip(": .")
        problem = expected(f"{metric.name} to give a number for each sequence", got, "another metric")
        raise MetricError(str(problem), metric.name, lasting=False) from error
