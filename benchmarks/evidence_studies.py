"""docs/evidence/studies.md: what each registered study asks, its rules, what it costs, and what it found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.markers import table
from unsmooth.evidence.grid import Registration, registered
from unsmooth.evidence.grid.piece import file_of
from unsmooth.evidence.grid.registration import HOME
from unsmooth.evidence.interval import Interval
from unsmooth.files import read_json
from unsmooth.report.evidence import words

ORDER = ("grid", "depth", "depth65", "rate", "cause", "surgical", "lever_plain", "lever", "layers", "text")
# Where `python -m unsmooth.evidence.grid run` keeps them.
PIECES = Path(__file__).parents[1] / "evidence/runs/grid"
Results = Mapping[str, Any]


def studies_page(results: Path) -> str:
    """The whole page.

    Args:
        results: Folder in which each study that was run has a file NAME.json.
    """
    names = sorted((path.stem for path in HOME.glob("*.json")), key=_place)
    studies = [(registered(name), _found(results / f"{name}.json")) for name in names]
    head = """# Registered studies

Each study is one file of rules, committed before its first run: data, networks, training, what is compared, on which
side of which margin, and when there is no verdict. Results of another registration are refused. A piece of a study is
one file that is resumed where it ends; `python -m unsmooth.evidence.grid run NAME` runs what is missing,
`… plan NAME` tells how much that is, and `… table NAME` writes the results that this page is made from. All pieces that
were run lie in `evidence/runs/grid` with the raw numbers of every training: layers at the start in double and in single
precision, after one and three steps, and at the end.
"""
    rows = [[f"[{one.name}](#{one.name})", one.question, one.budget, state(one, found)] for one, found in studies]
    return "\n".join([head, table(["study", "question", "budget", "state"], rows), "", *map(_study, studies)])


def _place(name: str) -> tuple[int, str]:
    return (ORDER.index(name) if name in ORDER else len(ORDER), name)


def _found(path: Path) -> Results | None:
    return read_json(path) if path.is_file() else None


def state(registration: Registration, found: Results | None) -> str:
    """How much of it was run, and for how long."""
    if found is None:
        begun = sum(file_of(PIECES / registration.name, piece).is_file() for piece in registration.all_pieces())
        return f"begun: {begun} of {len(registration.all_pieces())} pieces, no verdict yet" if begun else "not run"
    if found["registration"] != registration.digest:
        return "not run under these rules"
    pieces, missing = len(registration.all_pieces()), len(found["missing"])
    done = f"{pieces - missing} of {pieces} pieces" if missing else "complete"
    made = found["made"]
    return f"{done}; {made['seconds'] / 3600:.2f} hours on {made['hardware']}"


def _study(study: tuple[Registration, Results | None]) -> str:
    registration, found = study
    rules = "\n".join(f"- {name}: {text}" for name, text in registration.rules.items())
    training = registration.training
    how = f"{training.steps:,} steps of {training.batch}" if training.steps else "nothing is trained"
    rates = f", rates {', '.join(f'{rate:g}' for rate in registration.rates)}" if training.steps else ""
    parts = [
        f"## {registration.name}\n",
        f"{registration.question}\n",
        f"Registration {registration.digest}; {registration.data.name}, {registration.tokens()} tokens; {how}{rates}; "
        f"{state(registration, found)}.\n",
        rules,
    ]
    if found is not None and found["registration"] == registration.digest:
        parts += [part for part in (_claims(found), _contrasts(found), _escalation(found), _outcomes(found)) if part]
    return "\n".join([*parts, ""])


def _claims(found: Results) -> str:
    said = [f"- {claim}: **{verdict}**" for claim, verdict in (found.get("claims") or {}).items()]
    said += [f"- goes on: **{found['go']}**"] if "go" in found else []
    return "\n".join(["\nVerdicts:\n", *said]) if said else ""


def _contrasts(found: Results) -> str:
    rows = [
        [row["contrast"], _interval(row) if row.get("value") is not None else str(row.get("why")), row["claim"] or ""]
        for row in found.get("contrasts", ())
    ]
    return "\n" + table(["contrast", "difference [95 % interval]", "of the claim"], rows) if rows else ""


def _escalation(found: Results) -> str:
    rows = [
        [
            f"{row['family']}, width {row['width']}, gain {row['gain']}",
            _interval(row["slope"]),
            f"{row['left_by_a_block']:.3f}",
            row["shape"],
            f"{_interval(row['bound'])}: {row['bound']['holds']}",
        ]
        for row in found.get("escalation", ())
    ]
    head = ["stack", "slope of log t_div a block", "t_div left by a block", "shape", "rate minus P2's bound"]
    return "\n" + table(head, rows) if rows else ""


def _outcomes(found: Results) -> str:
    """Configurations by family and depth."""
    counted: dict[tuple[str, int], Counter[str]] = {}
    for row in found["configurations"]:
        if row["skill"] is not None:
            counted.setdefault((row["family"], row["depth"]), Counter())[row["outcome"]] += 1
    kinds = sorted({kind for counts in counted.values() for kind in counts})
    rows = [[family, str(depth), *(str(counts[kind]) for kind in kinds)] for (family, depth), counts in counted.items()]
    return "\n" + table(["family", "blocks", *kinds], rows) if rows else ""


def _interval(row: Mapping[str, Any]) -> str:
    low, high = (float("nan") if row[end] is None else row[end] for end in ("low", "high"))
    return words.in_words(Interval(row["value"], low, high, row["count"]))
