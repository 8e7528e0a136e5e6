"""`unsmooth evidence run`: measure a claim and write down what was found."""

from __future__ import annotations

import time

from unsmooth.evidence import claims as _claims
from unsmooth.evidence import studies as _studies
from unsmooth.evidence.bench import Bench
from unsmooth.evidence.claim import CLAIMS, Claim
from unsmooth.evidence.keeping import rounded
from unsmooth.evidence.provenance import made
from unsmooth.evidence.store import Record
from unsmooth.training.place import take_place

__all__ = ["run_claim"]
_REGISTERED = (_claims, _studies)  # importing them fills the registries


def run_claim(claim: str | Claim, bench: Bench) -> Record:
    """Measure a claim at the scale of the bench, write the numbers down and return them.

    Args:
        claim: A claim, or its id.
        bench: How much, where, with what.
    """
    one = CLAIMS[claim] if isinstance(claim, str) else claim
    start = time.monotonic()
    measured = one.measure(bench)
    with take_place(bench.device) as place:
        about = made(place.device)
    record = Record(
        id=one.id,
        scale=bench.scale,
        seeds=one.seeds(bench),
        rule=one.rule,
        made={**about, "seconds": round(time.monotonic() - start, 1)},
        measured=rounded(measured),
    )
    # A rule that cannot be applied to its own numbers is found out now, not by a reader.
    one.judge(record.measured)
    bench.store.write_claim(record)
    return record
