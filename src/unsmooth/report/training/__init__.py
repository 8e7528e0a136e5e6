"""The page of a training: what its run folder tells, in pictures and words."""

from unsmooth.report.training.figures import figure
from unsmooth.report.training.page import training_html, write_training_report
from unsmooth.report.training.run import Measurement, TrainedRun, find_runs, read_run

__all__ = [
    "Measurement",
    "TrainedRun",
    "figure",
    "find_runs",
    "read_run",
    "training_html",
    "write_training_report",
]
