"""A page for every claim of the papers: statement, rule, and what was found."""

from __future__ import annotations

from benchmarks.site.links import ROOT
from benchmarks.site.page import Page, chapter, facts, source_link
from unsmooth.evidence import Entry, ledger
from unsmooth.report.evidence import words


def claim_pages() -> list[Page]:
    """All claims in the order of the ledger."""
    entries = ledger()
    measured = "[What was measured](../../evidence/README.md). " if (ROOT / "docs/evidence/README.md").is_file() else ""
    introduction = (
        "Claims of the two papers, each with its sentence, how it is read here and what would speak for and against "
        f"it. {measured}`unsmooth evidence run NAME` measures one; `unsmooth ls claims` prints this list."
    )
    about = {entry.claim.id: f"{entry.claim.quote} **{words.standing(entry)}**" for entry in entries}
    return chapter("claims", "Claims", introduction, [_page(entry) for entry in entries], about)


def _page(entry: Entry) -> Page:
    claim = entry.claim
    declared = facts(
        {
            "source": f"{claim.source}; {claim.wording}",
            **dict(words.said_of(entry)),
            "draws on": ", ".join(f"`{name}`" for name in claim.studies),
            "verdict": f"**{words.standing(entry)}**",
            "effect": f"{words.effect(entry)}: {words.effect_of(entry)}" if entry.judgement else "",
            "scale": entry.record.scale if entry.record else "",
            "code": source_link(type(claim)),
        }
    )
    found = f"\n\n{entry.judgement.words}" if entry.judgement else ""
    found += "".join(f"\n\n> {caution}" for caution in words.cautions(entry))
    text = f"# {claim.id}\n\n> {claim.quote}\n\n{declared}{found}\n"
    return Page(f"reference/claims/{claim.id}.md", claim.id, text)
