"""A bounded part of the fuzz with every run of the tests; ``make fuzz`` goes on for as long as one likes."""

from __future__ import annotations

import os

import pytest

from tests.fuzz.__main__ import parts
from tests.fuzz.outcome import Outcome

SECONDS = {"readers": 30.0, "functionals": 15.0}


@pytest.mark.skipif(not hasattr(os, "fork") or not os.path.exists("/proc/self/clear_refs"), reason="tries are forked")
@pytest.mark.parametrize("name", sorted(parts()))
def test_nothing_is_found(name: str) -> None:
    outcome: Outcome = parts()[name].run(seed=0, seconds=SECONDS.get(name, 15.0))
    assert outcome.findings == []
    assert outcome.tries > 20
    assert outcome.past >= 0.3 * outcome.tries
