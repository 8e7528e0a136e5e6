"""Why tokens become alike, or do not: weights and attention to verdicts, predicted beside measured."""

from unsmooth.explaining.files import load_explanation
from unsmooth.explaining.result import (
    VERDICTS,
    Breakdown,
    Explanation,
    Gains,
    HeadFinding,
    LayerFinding,
    Skill,
    Stack,
)
from unsmooth.explaining.run import explain
from unsmooth.explaining.tiers import TIERS

__all__ = [
    "TIERS",
    "VERDICTS",
    "Breakdown",
    "Explanation",
    "Gains",
    "HeadFinding",
    "LayerFinding",
    "Skill",
    "Stack",
    "explain",
    "load_explanation",
]
