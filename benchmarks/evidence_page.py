"""docs/evidence/README.md and the ledger in README.md, from the results of `unsmooth evidence run`.

python -m benchmarks.evidence_page [--results evidence]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from benchmarks.markers import replaced
from unsmooth.evidence import Entry, Store, Trained, ledger
from unsmooth.evidence.interval import Interval, over_seeds
from unsmooth.files import write_whole
from unsmooth.report.charts import chart_svg
from unsmooth.report.evidence import figure, words
from unsmooth.report.evidence.studies import StudyRuns, accuracy_of, studies_of, variant_cells

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs" / "evidence"
PUBLIC = Path(__file__).parent / "public_vit_cifar100.json"
BEGIN, END = "<!-- evidence:begin -->", "<!-- evidence:end -->"
PLAIN = ("steering", "plain")
"""The study and the variant whose accuracy stands beside public figures."""


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    r"""Markdown; a bar in a cell is escaped.

    >>> print(table(["a"], [["|λ₂|"]]))
    | a |
    | --- |
    | \|λ₂\| |
    """
    lines = [head, ["---"] * len(head), *([cell.replace("|", r"\|") for cell in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def verdict(entry: Entry) -> str:
    """In bold where something is decided."""
    found = words.standing(entry)
    return f"**{found}**" if found in ("confirmed", "refuted") else found


def full_ledger(entries: Sequence[Entry]) -> str:
    """All claims, and what they took."""
    rows = [
        [
            str(entry.claim.number),
            f"[{entry.claim.id}](#{anchor(entry)})",
            verdict(entry),
            f"{words.effect(entry)}: {words.effect_of(entry)}" if entry.judgement else "–",
            str(len(entry.record.seeds)) if entry.record else "–",
            entry.record.scale if entry.record else "–",
            words.paper(entry),
            words.minutes(entry.gpu_minutes),
        ]
        for entry in entries
    ]
    head = ["", "claim", "verdict", "effect [95 % interval]", "seeds", "scale", "paper", "GPU minutes"]
    shared = "Minutes of a GPU are those of all runs behind a claim; claims share runs, so they do not add up."
    return f"## Ledger\n\n{words.counted(entries)}\n\n{table(head, rows)}\n\n{shared}\n"


def short_ledger(entries: Sequence[Entry]) -> str:
    """What stands in the README of the project."""
    rows = [
        [
            f"[{entry.claim.id}](docs/evidence/README.md#{anchor(entry)}) ({words.paper(entry)})",
            entry.claim.statement,
            verdict(entry),
            words.effect(entry),
        ]
        for entry in entries
    ]
    return f"{words.counted(entries)}\n\n{table(['claim', 'statement', 'verdict', 'effect [95 % interval]'], rows)}"


def anchor(entry: Entry) -> str:
    """As Markdown makes it of the heading."""
    return f"{entry.claim.number}-{entry.claim.id}"


def claim_part(entry: Entry, picture: Path | None) -> str:
    """Statement, rule, findings, figure, provenance."""
    claim = entry.claim
    parts = [
        f"### {claim.number} {claim.id}",
        f"{claim.statement} *{claim.source}*",
        f"- confirmed if {claim.confirmed_if}\n- refuted if {claim.refuted_if}",
        f"Verdict: {verdict(entry)}." + (f" {entry.judgement.words}" if entry.judgement else ""),
        *(f"> {caution}" for caution in words.cautions(entry)),
    ]
    if entry.judgement is not None:
        rows = [
            [one.what, words.in_words(one.interval), str(one.interval.count), one.verdict or "reported"]
            for one in entry.judgement.findings
        ]
        parts.append(table(["finding", "estimate [95 % interval]", "from", "says"], rows))
    if picture is not None:
        parts.append(f"![{claim.id}]({picture.name})")
    facts = ", ".join(f"{label.lower()} {text}" for label, text in words.provenance(entry))
    return "\n\n".join([*parts, *([f"<sub>{facts}</sub>"] if facts else [])]) + "\n"


def draw(entry: Entry) -> Path | None:
    """A claim's figure as SVG; None where it was not measured."""
    if entry.record is None:
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


def main() -> None:
    """Write both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=ROOT / "evidence")
    results = parser.parse_args().results
    entries, store = ledger(results), Store(results)
    studies = studies_of(entries, store)
    head = """# Evidence: what the papers claim, and what the numbers say

Written by `python -m benchmarks.evidence_page` from the results in [`evidence`](../../evidence), which
`unsmooth evidence run` wrote. P1 is arXiv 2401.04301, P2 is arXiv 2312.06182; statements are in our words. Rules and
seeds were committed before the runs at scale paper. Undecided means that the interval does not settle it.
"""
    claims = ["## Claims\n", *(claim_part(entry, draw(entry)) for entry in entries)]
    parts = [head, full_ledger(entries), accuracy_part(studies, PUBLIC), *claims, studies_part(studies)]
    write_whole(DOCS / "README.md", "\n".join(part for part in parts if part))
    readme = ROOT / "README.md"
    write_whole(readme, replaced(readme.read_text(encoding="utf-8"), BEGIN, END, short_ledger(entries)))


if __name__ == "__main__":
    main()
