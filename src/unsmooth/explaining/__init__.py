"""Why tokens become alike, or do not: weights and attention to verdicts, predicted beside measured."""

from unsmooth.explaining.files import load_explanation
from unsmooth.explaining.result import (
    VERDICTS,
    Breakdown,
    Explanation,
    Gains,
    HeadFinding,
    LayerFinding,
    RuleScore,
    Stack,
)
from unsmooth.explaining.rules import RULES
from unsmooth.explaining.run import explain

__all__ = [
    "RULES",
    "VERDICTS",
    "Breakdown",
    "Explanation",
    "Gains",
    "HeadFinding",
    "LayerFinding",
    "RuleScore",
    "Stack",
    "explain",
    "load_explanation",
]
