"""The page of the evidence: every claim with its rule, its numbers, its picture and its verdict."""

from unsmooth.report.evidence.figures import figure
from unsmooth.report.evidence.page import evidence_html, write_evidence_report

__all__ = [
    "evidence_html",
    "figure",
    "write_evidence_report",
]
