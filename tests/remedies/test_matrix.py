from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tests.remedies import checks_lifecycle, checks_tokens, checks_training  # noqa: F401 - register the checks
from tests.remedies.harness import Case, Outcome, Pair, pairs, run, run_all, run_pair
from tests.remedies.hosts import BY_NAME, FAMILIES, HOSTS, TestHost
from tests.remedies.settings import SETTINGS, Setting
from unsmooth.remedies import REMEDIES, names

COMPILED = "compiles whole"


def passes(found: dict[str, Outcome]) -> None:
    failed = [f"{words}: {outcome.reason}" for words, outcome in found.items() if outcome.status == "fail"]
    assert not failed, "\n".join(failed)


def test_every_remedy_has_settings() -> None:
    assert sorted(SETTINGS) == names()


# Post-norm, pre-norm with grouped heads and a cache, and torch's own layer, which has to be opened up.
ALWAYS = ("bert", "llama", "torch_post")


def quick_cases() -> list[Case]:
    """First settings on one of three hosts and on another family, the others on one that can have them, in turn.

    All of them on all hosts are in the matrix.
    """
    always = [BY_NAME[name] for name in ALWAYS]
    others = [host for host in FAMILIES if host not in always]
    chosen = []
    for number, (remedy, settings) in enumerate(SETTINGS.items()):
        for place, (variant, setting) in enumerate(settings.items()):
            able = _able(FAMILIES, setting) or _able(HOSTS, setting)
            first = [always[number % 3], others[number % len(others)]]
            hosts = first if place == 0 else [able[place % len(able)]]
            chosen += [Case(remedy, variant, host) for host in hosts]
    return chosen


def _able(hosts: Sequence[TestHost], setting: Setting) -> list[TestHost]:
    return [host for host in hosts if host.name not in setting.refused_by]


@pytest.mark.parametrize("case", quick_cases(), ids=lambda case: case.name)
def test_remedy_on_host(case: Case) -> None:
    passes(run_all(case, without=(COMPILED,)))


def some_at_once(names: Sequence[str]) -> list[Any]:
    """Compiling takes seconds: one in four, the rest by `make slow`, and all of them on all hosts in the matrix."""
    return [pytest.param(name, marks=pytest.mark.slow if at % 4 else ()) for at, name in enumerate(names)]


# What looks across tokens is compiled on a decoder, the rest on an encoder.
@pytest.mark.parametrize("remedy", some_at_once(sorted(SETTINGS)))
def test_compiles(remedy: str) -> None:
    variant, setting = next(iter(SETTINGS[remedy].items()))
    hosts = ("torch_post", "torch_pre") if REMEDIES[remedy].causal == "unchanged" else ("llama", "torch_post")
    host = next(host for host in hosts if host not in setting.refused_by)
    passes({COMPILED: run(COMPILED, Case(remedy, variant, BY_NAME[host]))})


def few_pairs(host: str) -> list[Pair]:
    """Each remedy about once below and once above another; both orders of all of them are in the matrix."""
    return pairs(BY_NAME[host])[:: len(SETTINGS)]


@pytest.mark.parametrize("pair", few_pairs("bert") + few_pairs("gpt2"), ids=lambda pair: pair.name)
def test_stacked(pair: Pair) -> None:
    passes(run_pair(pair))
