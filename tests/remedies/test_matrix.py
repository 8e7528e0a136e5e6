from __future__ import annotations

import pytest

from tests.remedies import checks_lifecycle, checks_tokens, checks_training  # noqa: F401 - register the checks
from tests.remedies.harness import Case, Outcome, Pair, pairs, run, run_all, run_pair
from tests.remedies.hosts import BY_NAME, FAMILIES
from tests.remedies.settings import SETTINGS
from unsmooth.remedies import names

COMPILED = "compiles whole"


def passes(found: dict[str, Outcome]) -> None:
    failed = [f"{words}: {outcome.reason}" for words, outcome in found.items() if outcome.status == "fail"]
    assert not failed, "\n".join(failed)


def test_every_remedy_has_settings() -> None:
    assert sorted(SETTINGS) == names()


def quick_cases() -> list[Case]:
    """First settings on one host per family, the others on two hosts that can have them, in turn."""
    chosen = []
    for remedy, settings in SETTINGS.items():
        for place, (variant, setting) in enumerate(settings.items()):
            able = [host for host in FAMILIES if host.name not in setting.refused_by]
            hosts = {able[place % len(able)].name, able[(place + 2) % len(able)].name}
            chosen += [Case(remedy, variant, host) for host in FAMILIES if place == 0 or host.name in hosts]
    return chosen


@pytest.mark.parametrize("case", quick_cases(), ids=lambda case: case.name)
def test_remedy_on_host(case: Case) -> None:
    passes(run_all(case, without=(COMPILED,)))


# Compiling takes seconds: an encoder and a decoder here, all hosts in the matrix.
@pytest.mark.parametrize("host", ["torch_post", "llama"])
@pytest.mark.parametrize("remedy", sorted(SETTINGS))
def test_compiles(remedy: str, host: str) -> None:
    case = Case(remedy, next(iter(SETTINGS[remedy])), BY_NAME[host])
    if case.refusal() is None:
        passes({COMPILED: run(COMPILED, case)})


# One order of each pair on one host here, both on two in the matrix.
@pytest.mark.parametrize("pair", pairs(BY_NAME["bert"])[::4] + pairs(BY_NAME["gpt2"])[2::4], ids=lambda pair: pair.name)
def test_stacked(pair: Pair) -> None:
    passes(run_pair(pair))
