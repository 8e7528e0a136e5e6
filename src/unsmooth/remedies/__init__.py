"""Remedies for over-smoothing as one-line changes of a model: apply, undo, fold, save."""

from unsmooth.remedies.base import PLACES, REMEDIES, Edit, remedy
from unsmooth.remedies.calibrating import calibrate
from unsmooth.remedies.call import Call
from unsmooth.remedies.listing import Description, Option, describe, names
from unsmooth.remedies.saving import restore, save
from unsmooth.remedies.site import Site
from unsmooth.remedies.token_mean import token_mean
from unsmooth.remedies.verbs import Applied, applied, apply, fold, undo

__all__ = [
    "PLACES",
    "REMEDIES",
    "Applied",
    "Call",
    "Description",
    "Edit",
    "Option",
    "Site",
    "applied",
    "apply",
    "calibrate",
    "describe",
    "fold",
    "names",
    "remedy",
    "restore",
    "save",
    "token_mean",
    "undo",
]
