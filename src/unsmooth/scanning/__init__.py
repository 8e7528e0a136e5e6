"""One forward pass over data, statistics streamed per layer."""

from unsmooth.scanning.files import load_scan
from unsmooth.scanning.one_pass import ScanInterrupted
from unsmooth.scanning.result import Change, Confound, MassiveToken, MetricCard, OutlierDimension, Row, Scan
from unsmooth.scanning.run import scan

__all__ = [
    "Change",
    "Confound",
    "MassiveToken",
    "MetricCard",
    "OutlierDimension",
    "Row",
    "Scan",
    "ScanInterrupted",
    "load_scan",
    "scan",
]
