"""Run the authors' own code of seven remedies beside ours, on the same weights and inputs.

    python -m benchmarks.official --fetch            # once: their files, into .official
    python -m benchmarks.official                    # -> results/official_code.json, docs/remedies/official.md
    python -m benchmarks.official --sources CLONES   # a folder with clones of their repositories

Outputs must be equal to 1e-5 in float32. In float64 the same is 1e-10 and less, so that it is one formula.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

import torch

from benchmarks.evidence_page import table
from benchmarks.official import remedies
from benchmarks.official.side_by_side import Comparison
from benchmarks.official.sources import URL, fetch
from unsmooth.errors import UnsmoothError
from unsmooth.evidence.records import commit
from unsmooth.files import write_whole

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "official_code.json"
PAGE = ROOT / "docs" / "remedies" / "official.md"
BAR = 1e-5
PRECISIONS = {"float32": torch.float32, "float64": torch.float64}
TEXT = """# The authors' own code beside ours

Written by `python -m benchmarks.official`. Seven remedies whose authors published code: their modules, taken out of
their files below, in a model of three blocks (σReparam: one), and ours (`variant="official"` where there
is a choice) in a copy of that model, on the same tokens, with weights and learned numbers drawn at random. Outputs are
to differ by at most {bar:g} in float32. In float64, where rounding hides nothing, the largest difference of all outputs
is {exact:.1e}, and {rest:.1e} without SoftDecay. Gradients are those of the input; differences are told as a share of
the largest.

{table}

## Their files

{sources}
"""


def comparisons() -> list[Comparison]:
    """All of them, by their files."""
    return [import_module(f"{remedies.__name__}.{one.name}").COMPARISON for one in iter_modules(remedies.__path__)]


def compared(comparison: Comparison, folder: Path) -> dict[str, Any]:
    """Every case in both precisions."""
    rows: dict[str, dict[str, Any]] = {}
    for name, dtype in PRECISIONS.items():
        torch.manual_seed(0)
        with default_dtype(dtype):  # in which their modules draw
            for case in comparison.cases(folder, dtype):
                rows.setdefault(case.what, {"settings": case.what})[name] = case.differences()
    sources = [vars(source) for source in comparison.sources]
    return {"remedy": comparison.remedy, "notes": comparison.notes, "sources": sources, "cases": list(rows.values())}


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Torch's, for a while."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def page(found: dict[str, Any]) -> str:
    """Markdown."""
    rows = [
        [
            f"`{one['remedy']}`",
            case["settings"],
            *(f"{case[precision]['output']:.1e}" for precision in PRECISIONS),
            *(f"{case[precision]['gradient']:.1e}" for precision in PRECISIONS),
        ]
        for one in found["remedies"]
        for case in one["cases"]
    ]
    heads = ["remedy", "settings", "outputs, float32", "float64", "gradients, float32", "float64"]
    lines = [
        f"- `{one['remedy']}`: "
        + ", ".join(_link(file) for file in one["sources"])
        + (f"; {one['notes']}" if one["notes"] else "")
        for one in found["remedies"]
    ]
    exact, rest = (worst(found, "float64", but) for but in ("", "softdecay"))
    return TEXT.format(bar=BAR, exact=exact, rest=rest, table=table(heads, rows), sources="\n".join(lines))


def _link(file: dict[str, str]) -> str:
    repository, commit_of, path = file["repository"], file["commit"], file["path"]
    return f"[{repository}, `{path}`](https://github.com/{repository}/blob/{commit_of}/{path})"


def worst(found: dict[str, Any], precision: str, but: str = "") -> float:
    """The largest difference of outputs, but for one remedy."""
    others = (one for one in found["remedies"] if one["remedy"] != but)
    return max(case[precision]["output"] for one in others for case in one["cases"])


def main(words: Sequence[str] | None = None) -> int:
    """Compare, write, and say whether all are equal."""
    given = _reader().parse_args(words)
    every = comparisons()
    if given.fetch:
        fetch((source for one in every for source in one.sources), given.sources, given.url)
    found = {
        "what": "the authors' code beside ours: largest differences of outputs and of the input's gradients",
        "bar": BAR,
        **commit(),
        "torch": torch.__version__,
        "remedies": [compared(one, given.sources) for one in every],
    }
    write_whole(given.out, json.dumps(found, indent=1) + "\n")
    write_whole(given.page, page(found))
    for one in found["remedies"]:
        for case in one["cases"]:
            single, double = (case[precision]["output"] for precision in PRECISIONS)
            print(f"{one['remedy']}, {case['settings']}: {single:.1e}, {double:.1e}")
    return int(worst(found, "float32") > BAR)


def _reader() -> argparse.ArgumentParser:
    reader = argparse.ArgumentParser(description="The authors' own code beside ours.", allow_abbrev=False)
    reader.add_argument("--sources", type=Path, default=ROOT / ".official", help="their repositories, or single files")
    reader.add_argument("--fetch", action="store_true", help="bring the files that are missing there")
    reader.add_argument("--url", default=URL, help="from where")
    reader.add_argument("--out", type=Path, default=RESULTS)
    reader.add_argument("--page", type=Path, default=PAGE)
    return reader


if __name__ == "__main__":
    try:
        sys.exit(main())
    except UnsmoothError as error:
        sys.exit(f"{error}")
