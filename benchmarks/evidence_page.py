"""docs/evidence and the counts of the ledger in README.md, from the results of `unsmooth evidence run`.

python -m benchmarks.evidence_page [--results evidence]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from benchmarks.evidence_corrections import corrections_page
from benchmarks.evidence_studies import studies_page
from benchmarks.markers import replaced, table
from unsmooth.evidence import Entry, Store, Trained, ledger
from unsmooth.evidence.claims.of_trained_models import take_trained_models
from unsmooth.evidence.interval import Interval, over_seeds
from unsmooth.evidence.multiplicity import multiplicity
from unsmooth.evidence.papers import PAPERS, VERSIONS
from unsmooth.evidence.registered import take_study
from unsmooth.files import read_json, write_whole
from unsmooth.report.charts import chart_svg
from unsmooth.report.evidence import figure, words
from unsmooth.report.evidence.studies import StudyRuns, accuracy_of, studies_of, variant_cells

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs" / "evidence"
PUBLIC = Path(__file__).parent / "public_vit_cifar100.json"
TRAINED_MODELS = Path(__file__).parent / "results" / "trained_models.json"
STUDIES = Path("full/grid")
"""Where below the results registered studies leave what they found."""
BEGIN, END = "<!-- evidence:begin -->", "<!-- evidence:end -->"
PLAIN = ("steering", "plain")
"""The study and the variant whose accuracy stands beside public figures."""


def verdict(entry: Entry) -> str:
    """In bold where something is decided."""
    found = words.standing(entry)
    return found if found in ("undecided", "not run") else f"**{found}**"


def glance(entries: Sequence[Entry]) -> str:
    """All claims: whose words, the verdict, and the one number."""
    rows = []
    for section, here in groupby(entries, key=lambda entry: entry.claim.section):
        rows.append(["", f"**{section}**", "", "", ""])
        for entry in here:
            claim = entry.claim
            number = f"{words.effect(entry)}: {words.effect_of(entry)}" if entry.judgement else "–"
            rows.append(
                [
                    str(claim.number),
                    f"[{claim.id}](#{anchor(entry)})",
                    f"{claim.wording}, {words.paper(entry)}",
                    verdict(entry),
                    number,
                ]
            )
    return table(["", "claim", "wording", "verdict", "the number [95 % interval]"], rows)


def counts(entries: Sequence[Entry]) -> str:
    """Verdicts by wording."""
    head, rows = words.counts(entries)
    return table(head, rows)


def anchor(entry: Entry) -> str:
    """As Markdown makes it of the heading."""
    return f"{entry.claim.number}-{entry.claim.id}"


def claim_part(entry: Entry, picture: Path | None) -> str:
    """Sentence, reading, rule, findings, figure, provenance."""
    claim = entry.claim
    parts = [
        f"### {claim.number} {claim.id}",
        f"> {claim.quote}\n>\n> *{claim.source}; {claim.wording}*",
        "\n".join(f"- {label.lower()}: {text}" for label, text in words.said_of(entry)),
        f"Verdict: {verdict(entry)}." + (f" {entry.judgement.words}" if entry.judgement else ""),
        *(f"> {caution}" for caution in words.cautions(entry)),
    ]
    if entry.judgement is not None and entry.judgement.findings:
        rows = [
            [one.what, words.in_words(one.interval), str(one.interval.count), one.outcome or "reported"]
            for one in entry.judgement.findings
        ]
        parts.append(table(["finding", "estimate [95 % interval]", "from", "says"], rows))
    if picture is not None:
        parts.append(f"![{claim.id}]({picture.name})")
    facts = ", ".join(f"{label.lower()} {text}" for label, text in words.provenance(entry))
    return "\n\n".join([*parts, *([f"<sub>{facts}</sub>"] if facts else [])]) + "\n"


def draw(entry: Entry) -> Path | None:
    """A claim's figure as SVG; None where it was not measured, or shows what another claim's does."""
    if entry.record is None or entry.record.id != entry.claim.id:
        return None
    return write_whole(DOCS / f"{entry.claim.id}.svg", chart_svg(figure(entry)))  # type: ignore[arg-type]


def studies_part(studies: Sequence[StudyRuns]) -> str:
    """Runs by variant."""
    parts = ["## Studies\n"]
    for study in studies:
        lines = {variant: variant_cells(runs) for variant, runs in study.variants.items()}
        head = ["variant", *next(iter(lines.values()))]
        rows = [[variant, *cells.values()] for variant, cells in lines.items()]
        said = f"{study.about}. " if study.about else ""
        minutes = words.minutes(study.gpu_minutes)
        parts.append(f"### {study.name}\n\n{said}Scale {study.scale}; GPU minutes: {minutes}.\n\n{table(head, rows)}\n")
    return "\n".join(parts) if studies else ""


def accuracy_part(studies: Sequence[StudyRuns], public: Path) -> str:
    """The plain model's accuracy beside what others published; nothing where there is no such list."""
    if not public.exists():
        return ""
    rows = [[one["what"], percent(one["accuracy"]), one["source"]] for one in json.loads(public.read_text())]
    ours = [
        [f"ours: {study.about}, variant {PLAIN[1]}, scale {study.scale}", over(study.variants[PLAIN[1]]), "this page"]
        for study in studies
        if study.name == PLAIN[0] and PLAIN[1] in study.variants
    ]
    return f"## Accuracy beside public figures\n\n{table(['what', 'accuracy, %', 'source'], [*ours, *rows])}\n"


def over(runs: Sequence[Trained]) -> str:
    """Mean and interval over seeds, in per cent."""
    known = [100 * value for run in runs if (value := accuracy_of(run)) is not None]
    return words.in_words(over_seeds(known)) if known else "–"


def percent(value: float) -> str:
    """A share, or what is in per cent already.

    >>> percent(0.7312), percent(73.12)
    ('73.1', '73.1')
    """
    return words.in_words(Interval(100 * value if value <= 1 else value, 0.0, 0.0, 1)).partition(" [")[0]


def sources() -> str:
    """Where quotations are from."""
    rows = [[f"{one.paper} {one.version}", PAPERS[one.paper], " ".join(one.at)] for one in VERSIONS]
    return f"## Sources of the quotations\n\nThe abstracts:\n\n{table(['', 'paper', 'read at'], rows)}\n"


def collect(store: Store) -> None:
    """Take what studies and benchmarks have found since as records of the claims that wait for it."""
    if TRAINED_MODELS.exists():
        results = json.loads(TRAINED_MODELS.read_text(encoding="utf-8"))
        take_trained_models(results, store, _made(results))
    for path in sorted((store.path / STUDIES).glob("*.json")):
        results = read_json(path)
        take_study(results, store, _made(results))


def _made(results: Mapping[str, Any]) -> dict[str, Any]:
    """What made results, as far as they say."""
    said = results.get("made") or {}
    known = {name: said[name] for name in ("commit", "changed", "when") if name in said}
    return {"hardware": said.get("hardware") or "CPU", "seconds": said.get("seconds") or 0.0, **known}


def main() -> None:
    """Write all three."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=ROOT / "evidence")
    results = parser.parse_args().results
    store = Store(results)
    collect(store)
    entries = ledger(results)
    studies = studies_of(entries, store)
    head = f"""# Evidence: what the papers claim, and what the numbers say

{words.counted(entries)}

{counts(entries)}

{glance(entries)}

Verbatim sentences stand in an abstract of the paper; *confirmed* and *refuted* are said of those alone, and only where
they were judged at the scale that they state. A sentence that is reconstructed (the papers' bodies were not at hand),
or ours, or judged at a smaller scale, is *supported here* or *not supported here*. *Undecided* says what would decide.
The number is the first finding of each claim. P1 is {PAPERS["P1"]}; P2 is {PAPERS["P2"]}.

{multiplicity(entries)}

[Registered studies](studies.md): their rules, what they cost and what they found. [What we got wrong
before](what-we-got-wrong.md): the verdicts of the first edition that changed. Written by
`python -m benchmarks.evidence_page` from the results in [`evidence`](../../evidence), which `unsmooth evidence run`
wrote; each claim tells where its rule is younger than its numbers.
"""
    claims = ["## Claims\n", *(claim_part(entry, draw(entry)) for entry in entries)]
    parts = [head, *claims, accuracy_part(studies, PUBLIC), studies_part(studies), sources()]
    write_whole(DOCS / "README.md", "\n".join(part for part in parts if part))
    write_whole(DOCS / "what-we-got-wrong.md", corrections_page(entries))
    write_whole(DOCS / "studies.md", studies_page(results / STUDIES))
    readme = ROOT / "README.md"
    write_whole(readme, replaced(readme.read_text(encoding="utf-8"), BEGIN, END, words.counted(entries)))


if __name__ == "__main__":
    main()
