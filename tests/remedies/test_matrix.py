from __future__ import annotations

import pytest

from tests.remedies import checks_lifecycle, checks_tokens, checks_training  # noqa: F401 - register the checks
from tests.remedies.harness import Case, cases, run_all
from tests.remedies.hosts import FAMILIES
from tests.remedies.settings import SETTINGS
from unsmooth.remedies import names


def test_every_remedy_has_settings() -> None:
    names()
    assert sorted(SETTINGS) == names()


@pytest.mark.parametrize("case", list(cases(FAMILIES)), ids=lambda case: case.name)
def test_remedy_on_host(case: Case) -> None:
    found = run_all(case, without=("compiles whole",))
    failed = [f"{words}: {outcome.reason}" for words, outcome in found.items() if outcome.status == "fail"]
    assert not failed, "\n".join(failed)
