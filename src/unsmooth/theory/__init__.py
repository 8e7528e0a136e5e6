"""The idealised layer as a laboratory: run it, predict its limit, and a catalogue in which the two are compared."""

from unsmooth.theory import cases as _cases  # noqa: F401 - registers the cases
from unsmooth.theory.case import CASES, Case, CaseResult, Comparison, Setup
from unsmooth.theory.iterate import iterate
from unsmooth.theory.maps import causal_attention, cyclic_attention, random_attention, two_group_attention
from unsmooth.theory.modes import Modes, modes
from unsmooth.theory.outcome import LIMITS, Limit, Outcome, outcome
from unsmooth.theory.predict import predict
from unsmooth.theory.prediction import Prediction, sign_cosine
from unsmooth.theory.trajectory import Trajectory

__all__ = [
    "CASES",
    "LIMITS",
    "Case",
    "CaseResult",
    "Comparison",
    "Limit",
    "Modes",
    "Outcome",
    "Prediction",
    "Setup",
    "Trajectory",
    "causal_attention",
    "cyclic_attention",
    "iterate",
    "modes",
    "outcome",
    "predict",
    "random_attention",
    "sign_cosine",
    "two_group_attention",
]
