from __future__ import annotations

import pytest

from tests.remedies import checks_lifecycle, checks_tokens, checks_training  # noqa: F401 - register the checks
from tests.remedies.harness import Case, Outcome, Pair, pairs, run, run_all, run_pair
from tests.remedies.hosts import BY_NAME, FAMILIES
from tests.remedies.settings import SETTINGS
from unsmooth.remedies import REMEDIES, names

COMPILED = "compiles whole"


def passes(found: dict[str, Outcome]) -> None:
    failed = [f"{words}: {outcome.reason}" for words, outcome in found.items() if outcome.status == "fail"]
    assert not failed, "\n".join(failed)


def test_every_remedy_has_settings() -> None:
    assert sorted(SETTINGS) == names()


def quick_cases() -> list[Case]:
    """First settings on one host per family, the others on one of those that can have them, in turn."""
    chosen = []
    for remedy, settings in SETTINGS.items():
        for place, (variant, setting) in enumerate(settings.items()):
            able = [host for host in FAMILIES if host.name not in setting.refused_by]
            chosen += [Case(remedy, variant, host) for host in (FAMILIES if place == 0 else [able[place % len(able)]])]
    return chosen


@pytest.mark.parametrize("case", quick_cases(), ids=lambda case: case.name)
def test_remedy_on_host(case: Case) -> None:
    passes(run_all(case, without=(COMPILED,)))


# Compiling takes seconds: what looks across tokens on a decoder, the rest on an encoder, all hosts in the matrix.
@pytest.mark.parametrize("remedy", sorted(SETTINGS))
def test_compiles(remedy: str) -> None:
    host = "torch_post" if REMEDIES[remedy].causal == "unchanged" else "llama"
    passes({COMPILED: run(COMPILED, Case(remedy, next(iter(SETTINGS[remedy])), BY_NAME[host]))})


# One order of each pair on one host here, both on two in the matrix.
@pytest.mark.parametrize("pair", pairs(BY_NAME["bert"])[::4] + pairs(BY_NAME["gpt2"])[2::4], ids=lambda pair: pair.name)
def test_stacked(pair: Pair) -> None:
    passes(run_pair(pair))
