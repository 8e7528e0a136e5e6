"""Losses of hidden states: what to add to a task's own loss so that tokens stay apart, or sequences do.

Each is a function of hidden states (batch, tokens, dim) and a boolean mask that gives a scalar with gradients.
"""

from unsmooth.losses._loss import LOSSES, Loss, LossTerm, loss, parse_loss
from unsmooth.losses.controlled import ControlledSpectrum, control_spectrum
from unsmooth.losses.cosine import cosine
from unsmooth.losses.dispersion import dispersion
from unsmooth.losses.duorec import duorec
from unsmooth.losses.laplacian import laplacian
from unsmooth.losses.layer_contrast import layer_contrast
from unsmooth.losses.simcse import simcse
from unsmooth.losses.spectrum import spectrum

__all__ = [
    "LOSSES",
    "ControlledSpectrum",
    "Loss",
    "LossTerm",
    "control_spectrum",
    "cosine",
    "dispersion",
    "duorec",
    "laplacian",
    "layer_contrast",
    "loss",
    "parse_loss",
    "simcse",
    "spectrum",
]
