"""One forward pass over data, statistics streamed per layer."""

from unsmooth.scanning.definitions import Definitions, compare_presets
from unsmooth.scanning.files import load_scan
from unsmooth.scanning.one_pass import ScanInterrupted
from unsmooth.scanning.profile import Profile, ProfileLine
from unsmooth.scanning.result import Change, Confound, MassiveToken, MetricCard, OutlierDimension, Row, Scan
from unsmooth.scanning.run import scan

__all__ = [
    "Change",
    "Confound",
    "Definitions",
    "MassiveToken",
    "MetricCard",
    "OutlierDimension",
    "Profile",
    "ProfileLine",
    "Row",
    "Scan",
    "ScanInterrupted",
    "compare_presets",
    "load_scan",
    "scan",
]
