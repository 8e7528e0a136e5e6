"""Explain every trained model at hand, score the rules over all their layers, and redraw docs/explain.

    python -m benchmarks.trained_models.explain [--only NAME] [--out docs/explain]

A rule was chosen by looking at some of the models; its score on the others is the one that counts.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from benchmarks.trained_models.explain_page import page
from benchmarks.trained_models.models import MODELS
from benchmarks.trained_models.more import MORE_MODELS, every_model
from unsmooth.explaining import Explanation, LayerFinding, RuleScore, explain, load_explanation
from unsmooth.explaining.files import to_json
from unsmooth.explaining.rules import RULES
from unsmooth.explaining.score import score
from unsmooth.files import finite, write_whole

# Models whose layers were looked at while the rules were made; the others are the test.
LOOKED_AT = (*(model.name for model in MODELS), "Gemma-3-270M", "rxnfp-BERT-pretrained")
BATCH, LENGTH, BATCHES = 4, 96, 4
RESULT = Path("benchmarks/results/explain_models.json")


def main(arguments: Sequence[str] | None = None) -> int:
    """Explain what is asked for; the page follows once all models are there."""
    options = _parser().parse_args(arguments)
    for entry in every_model(options.weights, options.wheels, options.only):
        folder = options.explained / entry.recipe.name
        if options.only is None and (folder / "manifest.json").is_file():
            continue
        torch.manual_seed(0)
        found = explain(
            entry.model,
            entry.data,
            batch_size=BATCH,
            max_length=LENGTH,
            max_batches=BATCHES,
            name=entry.recipe.name,
            jacobian=options.norms,
        )
        found.save(folder)
        print(found.sentence, flush=True)
    names = [model.name for model in (*MODELS, *MORE_MODELS)]
    missing = [name for name in names if not (options.explained / name / "manifest.json").is_file()]
    if missing:
        print(f"The page is left as it is, for want of {', '.join(missing)}.")
        return 0
    explained = [load_explanation(options.explained / name) for name in names]
    results = summarise(explained)
    write_whole(RESULT, json.dumps(results, indent=1, allow_nan=False) + "\n")
    write_whole(options.out / "README.md", page(results))
    print(f"page: {options.out / 'README.md'}")
    return 0


def summarise(explained: Sequence[Explanation]) -> dict[str, Any]:
    """Scores over all layers, over the models looked at and over the others, and every model's layers."""
    groups = {
        "all": explained,
        "looked at": [one for one in explained if one.name in LOOKED_AT],
        "held out": [one for one in explained if one.name not in LOOKED_AT],
    }
    return finite(  # type: ignore[no-any-return]
        {
            "what": (__doc__ or "").splitlines()[0],
            "settings": {"batch": BATCH, "tokens": LENGTH, "batches": BATCHES},
            "rules": {name: rule.definition for name, rule in RULES.items()},
            "scores": {
                group: {name: asdict(found) for name in RULES if (found := pooled(name, members))}
                for group, members in groups.items()
            },
            "models": [_model(one) for one in explained],
            "versions": dict(explained[0].manifest["versions"]),
        }
    )


def pooled(rule: str, explained: Sequence[Explanation]) -> RuleScore | None:
    """A rule's score over the layers of several models together."""
    layers = [one for found in explained for one in found.layers if rule in one.predicted and one.measured is not None]
    definition = RULES[rule].definition
    return score(rule, definition, [one.predicted[rule] for one in layers], [one.measured or 0.0 for one in layers])


def _model(found: Explanation) -> dict[str, Any]:
    content = to_json(found)
    return {
        "name": found.name,
        "looked_at": found.name in LOOKED_AT,
        "sentence": found.sentence,
        "notes": list(found.notes),
        "rebuilding_error": max(one.rebuilt or math.nan for one in found.layers),
        "stack": content["stack"],
        "scores": {one.rule: asdict(one) for one in found.scores},
        "layers": [_layer(one) for one in found.layers],
        "data": found.manifest["data"],
        "weights_sha256": found.manifest["model"]["weights_sha256"],
    }


def _layer(one: LayerFinding) -> dict[str, Any]:
    """A layer without its cloud and its words."""
    kept = asdict(one)
    for name in ("eigenvalues", "reason", "change", "block"):
        del kept[name]
    return kept | {"measured": one.measured}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    names = [model.name for model in (*MODELS, *MORE_MODELS)]
    parser.add_argument("--only", metavar="NAME", action="append", choices=names)
    parser.add_argument("--norms", action="store_true", help="also norms of Jacobians, which no rule needs: hours")
    parser.add_argument("--weights", type=Path, default=Path("weights"))
    parser.add_argument("--wheels", type=Path)
    parser.add_argument("--explained", type=Path, default=Path("scans/explained"))
    parser.add_argument("--out", type=Path, default=Path("docs/explain"))
    return parser


if __name__ == "__main__":
    sys.exit(main())
