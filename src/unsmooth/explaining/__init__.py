"""Why tokens become alike, or do not: what foretells it, from how much knowledge, and verdicts of eigenvalues."""

from unsmooth.explaining.files import load_explanation
from unsmooth.explaining.result import (
    VERDICTS,
    Breakdown,
    Explanation,
    Gains,
    Growth,
    HeadFinding,
    LayerFinding,
    Skill,
)
from unsmooth.explaining.run import explain
from unsmooth.explaining.tiers import TIERS

__all__ = [
    "TIERS",
    "VERDICTS",
    "Breakdown",
    "Explanation",
    "Gains",
    "Growth",
    "HeadFinding",
    "LayerFinding",
    "Skill",
    "explain",
    "load_explanation",
]
