"""How far published definitions are apart on a model that comes along, and the sentence about it in docs/scan.md.

    python -m benchmarks.definitions [--out benchmarks/results/definitions.json]

The images are those that come with the model; `unsmooth presets demo:plain` prints the same numbers.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

import unsmooth
from benchmarks.markers import replaced
from unsmooth.files import write_whole
from unsmooth.models import demo

ROOT = Path(__file__).parents[1]
RESULT = ROOT / "benchmarks" / "results" / "definitions.json"
PAGE = ROOT / "docs" / "scan.md"
MODEL = "demo:plain"
BEGIN, END = "<!-- definitions:begin -->", "<!-- definitions:end -->"


def main() -> None:
    """Measure, write the numbers, and bring docs/scan.md in step with them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=RESULT)
    parser.add_argument("--page", type=Path, default=PAGE)
    options = parser.parse_args()
    facts = measure()
    write_whole(options.out, json.dumps(facts, indent=1, ensure_ascii=False) + "\n")
    write_whole(options.page, replaced(options.page.read_text(encoding="utf-8"), BEGIN, END, sentence(facts)))
    print(sentence(facts))


def measure() -> dict[str, Any]:
    """Every definition that fits the model, in one pass over its images."""
    model = unsmooth.load(MODEL)
    images = demo.shown(model)
    found = unsmooth.compare_presets(model, images, progress=False)
    return {
        "what": (__doc__ or "").splitlines()[0],
        "model": MODEL,
        "images": len(images),
        "torch": torch.__version__,
        "quantities": found.quantities,
        "gaps": [asdict(gap) for gap in found.gaps],
        "more_alike": {name: found.verdict(name) for name in found.scans},
        "curves": {name: [row.mean for row in found.curve(name)] for name in found.scans},
    }


def sentence(facts: Mapping[str, Any]) -> str:
    """What docs/scan.md says of it."""
    apart = [
        f"{len(facts['quantities'][gap['quantity']])} definitions of the {gap['quantity']} are up to "
        f"{gap['size']:.2f} apart at a layer"
        for gap in facts["gaps"]
    ]
    said = list(facts["more_alike"].values())
    return (
        f"On `{facts['model']}` {', '.join(apart)}, and of {len(said)} definitions {said.count('more')} say that its\n"
        f"tokens grow more alike with depth, {said.count('less')} less, {said.count('open')} neither clearly "
        f"([json](../benchmarks/results/{RESULT.name}))."
    )


if __name__ == "__main__":
    main()
