"""An arena in words, as a table and as a page."""

from unsmooth.report.arena.plate import arena_plate, write_arena_report
from unsmooth.report.arena.words import (
    cells_of,
    failures_of,
    findings_of,
    heads_of,
    notes_of,
    rates_chosen_on,
    rates_in_words,
    sentence_of,
)

__all__ = [
    "arena_plate",
    "cells_of",
    "failures_of",
    "findings_of",
    "heads_of",
    "notes_of",
    "rates_chosen_on",
    "rates_in_words",
    "sentence_of",
    "write_arena_report",
]
