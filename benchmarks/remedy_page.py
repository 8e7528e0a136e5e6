"""Writes docs/remedies/README.md from what was measured: curves, costs, what sharpening keeps.

python -m benchmarks.remedy_page
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.remedy_jobs import NOISE, all_jobs
from unsmooth.files import write_whole

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "remedies" / "README.md"

INTRODUCTION = """# What remedies do, and what they cost

Written by `python -m benchmarks.remedy_page` from [`benchmarks/results`](../../benchmarks/results).
What works on which model: [the matrix](matrix.md), by `make matrix`. Where authors published code:
[theirs beside ours](official.md), by `make official`.

## The similarity curve

Remedies applied to two random stacks of 24 layers (torch's encoder, Xavier start, means over three seeds) and to
three trained models, **without training anything**: what they do to the mean cosine of the residual stream by layer. A
trained model was not trained with the remedy, so this shows the lever, not a better model. `make curves` redraws it.

Where a line is missing, the model cannot have the remedy (`refused` below); a thin line inside a thick one means that
two do the same. Not drawn are remedies that make little sense without training.

![Mean cosine by layer under each remedy](curves.svg)

"""

COSTS = """## What a training step costs over the plain model

Bold: over its bar.

"""
# Of modes, in the order of columns.
WAYS = {False: "as it is written", True: "compiled"}
NOT_CAPTURED = "*"


def read(name: str) -> Any:
    """One result, or None where it was not measured."""
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines) + "\n"


def ends(found: Any) -> str:
    """The last layer of every curve."""
    models = list(dict.fromkeys(row["model"] for row in found["rows"]))
    remedies = list(dict.fromkeys(row["remedy"] for row in found["rows"]))
    remedies.sort(key=lambda name: name != "plain")
    last = {(row["remedy"], row["model"]): f"{row['curve'][-1]:.2f}" for row in found["rows"] if row.get("curve")}
    rows = [[remedy, *(last.get((remedy, model), "refused") for model in models)] for remedy in remedies]
    return "Mean cosine at the last layer:\n\n" + table(["remedy", *models], rows)


def bases(found: Any) -> str:
    """What sharpen costs in each of its bases, all in one run."""
    cells: dict[str, dict[str, str]] = {}
    bars = {row["remedy"]: row["bar"] for row in found["rows"]}
    for row in found["rows"]:
        cells.setdefault(row["remedy"], {})[row.get("precision", "float32")] = _measured(row, row["bar"])
    precisions = list(dict.fromkeys(name for by in cells.values() for name in by))
    text = f"The bases of sharpen: {found['step']}; torch {found['torch']}, {found['rounds']} rounds.\n\n"
    rows = [
        [f"`{remedy}`", *(by.get(one, "") for one in precisions), f"{bar:.2f}" if (bar := bars[remedy]) else ""]
        for remedy, by in cells.items()
    ]
    return text + table(["remedy", *precisions, "bar"], rows)


def cost(found: Any, title: str, elsewhere: frozenset[str]) -> str:
    """Ratios of one run, the bar beside them where there is one; without those that are measured elsewhere."""
    modes = {WAYS[mode["compiled"]]: mode for mode in found["modes"]}
    text = f"### {title}\n\n{found['step']}; torch {found['torch']}, "
    text += f"medians of {found['rounds']} rounds in which both are timed in turn, and their middle half.\n\n"
    for way, mode in modes.items():
        plain = ", ".join(f"{norm} {seconds * 1e3:.2f} ms" for norm, seconds in mode["plain_seconds"].items())
        text += f"The plain step {way}: {plain}.\n\n"
    # On a CPU the noise (first row) is larger than what the bars allow.
    bars = {_of(job.row(False)): job.row(False)["bar"] for job in all_jobs()} if "gpu" in found["machine"] else {}
    by_way = {way: {_of(row): row for row in mode["rows"]} for way, mode in modes.items()}
    rows = []
    for key in dict.fromkeys(key for rows_of in by_way.values() for key in rows_of):
        remedy, norm, folded = key
        if remedy in elsewhere and not folded:
            continue
        cells = [_measured(rows_of.get(key), bars.get(key)) for rows_of in by_way.values()]
        bar = bars.get(key)
        rows.append([f"`{remedy}`" + (", folded" if folded else ""), norm, *cells, f"{bar:.2f}" if bar else ""])
    text += table(["remedy", "model", *by_way, "bar"], rows)
    if any("not_captured" in row for rows_of in by_way.values() for row in rows_of.values()):
        text += (
            f"\\{NOT_CAPTURED} A CUDA graph cannot hold it: timed without one, beside the plain model without one.\n\n"
        )
    return text


def _of(row: dict[str, Any]) -> tuple[str, str, bool]:
    return row["remedy"], row["norm"], row.get("folded", False)


def _measured(row: dict[str, Any] | None, bar: float | None) -> str:
    """A cell; bold where it is over its bar."""
    if row is None:
        return ""
    if "over_plain" not in row:
        return f"not measured: {row['failed']}"
    mark = NOT_CAPTURED if "not_captured" in row else ""
    text = f"{row['over_plain']:.3f}{mark} ({row['low']:.3f} to {row['high']:.3f})"
    return f"**{text}**" if bar is not None and round(row["over_plain"], 2) > bar else text


KEPT = {
    "off_orthonormal": "‖VᵀV − I‖₂",
    "off_triangle": "‖H − QTQᵀ‖/‖H‖",
    "off_inverse": "‖VX − I‖₂",
    "diagonal_outside": "diag(T) past the interval",
    "outside_folded": "eigenvalues past it, folded",
    "folded_apart": "folded, logits apart",
    "norm": "‖H‖₂",
}


def keeping(found: Any) -> str:
    """What sharpen and smooth keep over training."""
    rows = [
        [
            run["remedy"],
            run["basis"],
            run["precision"],
            f"{run['loss_first']:.2f} → {run['loss_last']:.2f}",
            *(_small(run.get(key)) for key in KEPT),
        ]
        for run in found["runs"]
    ]
    header = ["remedy", "basis", "precision", "loss", *KEPT.values()]
    return f"## What {found['steps']:,} training steps leave standing\n\n{found['what']}\n\n" + table(header, rows)


def applying(found: Any) -> str:
    """How long apply and fold take."""
    rows = [
        [run["basis"], run["start"], f"{run['apply_seconds']:.2f}", f"{run['fold_seconds']:.2f}"]
        for run in found["runs"]
    ]
    text = f"## Applying and folding\n\n{found['what']} {found['parameters'] / 1e6:.0f} million parameters.\n\n"
    return text + table(["basis", "start", "apply, s", "fold, s"], rows)


def _small(number: float | None) -> str:
    return "" if number is None else f"{number:.1e}"


def page() -> str:
    """The whole page, of what has been measured so far."""
    parts = [INTRODUCTION]
    if curves := read("remedy_curves"):
        parts.append(ends(curves))
    parts.append(COSTS)
    for kind, title in (("_gpu", "On one H200"), ("", "On one CPU core")):
        by_basis = read(f"basis_cost{kind}")
        if found := read(f"remedy_cost{kind}"):
            elsewhere = frozenset(row["remedy"] for row in by_basis["rows"]) - {NOISE} if by_basis else frozenset()
            parts.append(cost(found, title, elsewhere))
        if by_basis:
            parts.append(bases(by_basis))
    if training := read("sharpen_training"):
        parts.append(keeping(training))
    if apply_cost := read("apply_cost"):
        parts.append(applying(apply_cost))
    return "".join(parts).rstrip() + "\n"


if __name__ == "__main__":
    write_whole(PAGE, page())
