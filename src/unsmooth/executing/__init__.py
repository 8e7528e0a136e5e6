"""One way to do many jobs: resumable ones, handed out in place, to processes, by Ray or by SLURM."""

from __future__ import annotations

from unsmooth.executing.driver import DiedError, Driver, Job, forecast
from unsmooth.executing.engines import ENGINES, Crew
from unsmooth.executing.holding import HeldError, held

__all__ = ["ENGINES", "Crew", "DiedError", "Driver", "HeldError", "Job", "forecast", "held"]
