"""The papers' claims as code: each with its rule, its runs and its verdict.

>>> from unsmooth.evidence import CLAIMS
>>> CLAIMS["steering-shows"].source.paper
'P1'
"""

from __future__ import annotations

from unsmooth.evidence.bench import Bench, NotFinishedError, Specimen
from unsmooth.evidence.claim import CLAIMS, Claim
from unsmooth.evidence.finding import Finding, Judgement
from unsmooth.evidence.interval import Interval
from unsmooth.evidence.ledger import Entry, ledger
from unsmooth.evidence.records import Record, Store, Trained
from unsmooth.evidence.run import carry_out_study, look_again, run_claim
from unsmooth.evidence.study import STUDIES, Study

__all__ = [
    "CLAIMS",
    "STUDIES",
    "Bench",
    "Claim",
    "Entry",
    "Finding",
    "Interval",
    "Judgement",
    "NotFinishedError",
    "Record",
    "Specimen",
    "Store",
    "Study",
    "Trained",
    "carry_out_study",
    "ledger",
    "look_again",
    "run_claim",
]
