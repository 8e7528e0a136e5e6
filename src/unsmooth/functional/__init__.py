"""Pure functions of token vectors and attention maps: no state, no files, no model."""

from unsmooth.functional._metric import METRICS, BoundMetric, Metric, parse_metric
from unsmooth.functional._tokens import Tokens
from unsmooth.functional.mean_cosine import mean_cosine

__all__ = [
    "METRICS",
    "BoundMetric",
    "Metric",
    "Tokens",
    "mean_cosine",
    "parse_metric",
]
