"""Watch how alike tokens become while a model trains: one core, thin shells for trainers, sinks and rules."""

from unsmooth.monitor.core import Monitor
from unsmooth.monitor.folder import Watched, find_watched, read_watched
from unsmooth.monitor.reading import Reading
from unsmooth.monitor.settings import Alarm, Rule
from unsmooth.monitor.sinks import SINKS, Card, Sink

__all__ = [
    "SINKS",
    "Alarm",
    "Card",
    "Monitor",
    "Reading",
    "Rule",
    "Sink",
    "Watched",
    "find_watched",
    "read_watched",
]
