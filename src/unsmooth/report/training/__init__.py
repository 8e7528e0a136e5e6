"""The page of a training: what its run folder tells, in pictures and words."""

from unsmooth.report.training.figures import figure
from unsmooth.report.training.page import training_html, write_training_report

__all__ = [
    "figure",
    "training_html",
    "write_training_report",
]
