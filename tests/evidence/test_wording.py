"""Whose words a claim has, and which verdicts they allow."""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path
from typing import ClassVar, get_args

import pytest

import unsmooth.evidence
from tests.evidence.test_core import Counting
from unsmooth.errors import UnsmoothError
from unsmooth.evidence import CLAIMS, ledger
from unsmooth.evidence.claim import Section, Source, check_wording, in_order
from unsmooth.evidence.finding import Outcome, Verdict, Wording, verdict_of
from unsmooth.evidence.papers import PAPERS, VERSIONS, abstract


@pytest.mark.parametrize("name", CLAIMS)
def test_a_verbatim_quote_stands_in_the_abstract(name: str) -> None:
    claim = CLAIMS[name]
    found = [one.abstract for one in VERSIONS if claim.quote in one.abstract]
    assert bool(found) == (claim.wording == "verbatim")
    if claim.wording == "verbatim":
        assert abstract(claim.source.paper, claim.source.version) in found
    assert claim.stated_scale <= (claim.wording == "verbatim")


def test_abstracts_have_a_version_an_address_and_plain_text() -> None:
    assert [(one.paper, one.version) for one in VERSIONS] == [("P1", "v1"), ("P1", "v2"), ("P1", "v3"), ("P2", "v2")]
    for one in VERSIONS:
        assert one.paper in PAPERS
        assert one.at
        assert all(address.startswith("http") for address in one.at)
        assert one.abstract == " ".join(one.abstract.split())
        assert one.abstract.endswith(".")


class Quoting(Counting):
    wording: ClassVar[Wording] = "verbatim"
    source: ClassVar[Source] = Source("P2", "v2", "abstract")


def test_what_no_abstract_says_is_not_verbatim() -> None:
    with pytest.raises(UnsmoothError, match="Expected the quote of counting in the abstract of P2 v2, abstract"):
        check_wording(Quoting)

    class OtherVersion(Quoting):
        quote: ClassVar[str] = "linear rate"
        source: ClassVar[Source] = Source("P2", "v1", "abstract")

    with pytest.raises(UnsmoothError, match="P2 v1"):
        check_wording(OtherVersion)

    class Scaled(Counting):
        stated_scale: ClassVar[bool] = True

    with pytest.raises(UnsmoothError, match="Expected stated_scale of counting only with a verbatim quote"):
        check_wording(Scaled)


def test_only_verbatim_sentences_at_their_scale_are_confirmed_or_refuted() -> None:
    found = {}
    for outcome, wording, stated in product(get_args(Outcome), get_args(Wording), (True, False)):
        found[outcome, wording, stated] = verdict_of(outcome, wording, stated_scale=stated)
    assert set(found.values()) == set(get_args(Verdict))
    for (outcome, wording, stated), verdict in found.items():
        assert (verdict == "undecided") == (outcome == "undecided")
        assert (verdict in ("confirmed", "refuted")) == (outcome != "undecided" and wording == "verbatim" and stated)
        assert (verdict in ("confirmed", "supported here")) == (outcome == "for")


def test_no_claim_or_ledger_code_makes_a_verdict_of_its_own() -> None:
    """Nothing below unsmooth.evidence but `finding` writes the words."""
    home = Path(unsmooth.evidence.__file__).parent
    written = [
        path for path in home.rglob("*.py") if re.search(r'"(confirmed|refuted|supported here)"', path.read_text())
    ]
    assert [path.name for path in written] == ["finding.py"]


def test_sections_stand_together_and_hold_what_they_say() -> None:
    sections = [claim.section for claim in in_order()]
    assert list(dict.fromkeys(sections)) == list(get_args(Section))
    assert sections == sorted(sections, key=get_args(Section).index)
    assert all(claim.wording == "ours" for claim in in_order() if claim.section == "our own")


def test_the_ledger_of_the_package_says_how_it_stands_and_what_would_decide() -> None:
    for entry in ledger(Path(__file__).parents[2] / "evidence"):
        row = entry.to_json()
        assert {"quote", "wording", "source", "verdict", "section", "would_decide"} <= set(row)
        assert (row["would_decide"] is None) == (row["verdict"] != "undecided")
        if row["verdict"] in ("confirmed", "refuted"):
            assert row["wording"] == "verbatim"
            assert entry.claim.stated_scale
