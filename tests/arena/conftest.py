"""Step times are taken, but not well: no test looks at a number that depends on a clock."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from unsmooth.training import stopwatch


@pytest.fixture(scope="session", autouse=True)
def _hurried() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(stopwatch, "ROUNDS", 1)
        patched.setattr(stopwatch, "_SECONDS_OF_A_ROUND", 0.0)
        yield
