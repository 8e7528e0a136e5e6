"""The idealised layer as a laboratory: run it, and predict its limit."""

from unsmooth.theory.iterate import Trajectory, iterate
from unsmooth.theory.maps import causal_attention, cyclic_attention, random_attention, two_group_attention
from unsmooth.theory.modes import Modes, modes
from unsmooth.theory.outcome import LIMITS, Limit, Outcome, outcome
from unsmooth.theory.predict import Prediction, predict, sign_cosine

__all__ = [
    "LIMITS",
    "Limit",
    "Modes",
    "Outcome",
    "Prediction",
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
