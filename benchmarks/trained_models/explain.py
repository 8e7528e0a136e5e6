"""Explain every trained model at hand, score the tiers over their lineages, and measure what the ledger registered.

    python -m benchmarks.trained_models.explain [--only NAME] [--out docs/explain]

What is measured of a model is saved before the next one is fetched; scores and page come from what is saved, so that
another way of scoring needs no pass through a model. Models that others trained decide; ours are scored apart.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from benchmarks.trained_models.explain_page import page
from benchmarks.trained_models.models import MODELS, TrainedModel
from benchmarks.trained_models.more import LINEAGES, MORE_MODELS, Entry, every_model
from benchmarks.trained_models.registered import Curves, measure_curves, registered_rows
from benchmarks.trained_models.skill import Model, skills_over
from unsmooth import load
from unsmooth.evidence.claims.of_trained_models import REGISTRATION
from unsmooth.evidence.records import made
from unsmooth.explaining import TIERS, Explanation, LayerFinding, explain, load_explanation
from unsmooth.explaining.files import to_json
from unsmooth.explaining.score import skills
from unsmooth.explaining.words import sentence
from unsmooth.files import finite, read_json, write_whole
from unsmooth.models import demo, find_anatomy
from unsmooth.scanning.inputs import preprocessing
from unsmooth.scanning.opening import open_data

# Models whose layers were looked at while the tiers were made; the others are the test.
LOOKED_AT = tuple(model.name for model in MODELS)
OURS = tuple(f"{demo.PREFIX}{name}" for name in demo.NAMES)
BATCH, LENGTH, BATCHES = 4, 96, 4
RESULT = Path("benchmarks/results/explain_models.json")
REGISTERED_RESULT = Path("benchmarks/results/trained_models.json")
CURVES = "curves.json"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what is asked for and is not saved; scores and page follow once all models are there."""
    options = _parser().parse_args(arguments)
    names = [*(model.name for model in (*MODELS, *MORE_MODELS)), *OURS]
    for name in options.only or names:
        folder = _folder(options.explained, name)
        if options.only is not None or not (folder / CURVES).is_file():
            for entry in _entries(name, options):
                measure(entry, folder, options.norms)
    missing = [name for name in names if not (_folder(options.explained, name) / CURVES).is_file()]
    if missing:
        print(f"The page is left as it is, for want of {', '.join(missing)}.")
        return 0
    measured = [_read(_folder(options.explained, name)) for name in names]
    results = summarise([found for found, _ in measured])
    write_whole(RESULT, json.dumps(results, indent=1, allow_nan=False) + "\n")
    write_whole(REGISTERED_RESULT, json.dumps(registered(measured), indent=1, allow_nan=False) + "\n")
    write_whole(options.out / "README.md", page(results))
    print(f"page: {options.out / 'README.md'}")
    return 0


def measure(entry: Entry, folder: Path, norms: bool = False) -> None:
    """Explain one model and save it; what the ledger asks beyond that beside it, last."""
    torch.manual_seed(0)
    found = explain(
        entry.model,
        entry.data,
        batch_size=BATCH,
        max_length=LENGTH,
        max_batches=BATCHES,
        name=entry.recipe.name,
        jacobian=norms,
        progress=False,
    )
    found.save(folder)
    source = open_data(entry.data, preprocessing(entry.model, [find_anatomy(entry.model)], None, None, BATCH, LENGTH))
    curves = measure_curves(entry.model, source, BATCHES)
    write_whole(folder / CURVES, json.dumps(asdict(curves), indent=1, allow_nan=False))
    print(found.sentence, flush=True)


def _entries(name: str, options: argparse.Namespace) -> Iterator[Entry]:
    if name not in OURS:
        yield from every_model(options.weights, options.wheels, [name])
        return
    recipe = TrainedModel(name, (), (), "ViT trained here", reads="test images of CIFAR-100")
    yield Entry(recipe, load(name), demo.batches(name, BATCH * BATCHES, BATCH))


def _folder(explained: Path, name: str) -> Path:
    return explained / name.replace(":", "-")


def _read(folder: Path) -> tuple[Explanation, Curves]:
    return load_explanation(folder), Curves(**read_json(folder / CURVES))


def registered(measured: Sequence[tuple[Explanation, Curves]]) -> dict[str, Any]:
    """What the ledger takes: a number by lineage for every registered claim."""
    return finite(  # type: ignore[no-any-return]
        {
            "what": "The quantities of src/unsmooth/evidence/trained_models.json, measured",
            "settings": {"batch": BATCH, "tokens": LENGTH, "batches": BATCHES},
            "registered": REGISTRATION["registered"],
            "made": made(torch.device("cpu")),
            "claims": registered_rows(measured, LINEAGES, OURS),
            "negative_norm_weights": {found.name: list(curves.negative) for found, curves in measured},
            "versions": dict(measured[0][0].manifest["versions"]),
        }
    )


def summarise(explained: Sequence[Explanation]) -> dict[str, Any]:
    """Skills over public lineages, over those nobody had looked at and over ours, and every model's layers."""
    models = [
        Model(
            name=one.name,
            lineage=LINEAGES.get(one.name, one.name),
            ours=one.name in OURS,
            measured=[math.nan if layer.logit_change is None else layer.logit_change for layer in one.layers],
            predicted={tier: [layer.predicted.get(tier, math.nan) for layer in one.layers] for tier in TIERS},
        )
        for one in explained
    ]
    looked_at = {LINEAGES.get(name, name) for name in LOOKED_AT}
    return finite(  # type: ignore[no-any-return]
        {
            "what": (__doc__ or "").splitlines()[0],
            "settings": {"batch": BATCH, "tokens": LENGTH, "batches": BATCHES},
            "tiers": {name: tier.knows for name, tier in TIERS.items()},
            "skills": skills_over(models, looked_at),
            "models": [_model(one) for one in explained],
            "versions": dict(explained[0].manifest["versions"]),
        }
    )


def _model(found: Explanation) -> dict[str, Any]:
    content, scored = to_json(found), skills(found.layers)
    return {
        "name": found.name,
        "lineage": LINEAGES.get(found.name, found.name),
        "ours": found.name in OURS,
        "looked_at": found.name in (*LOOKED_AT, *OURS),
        "sentence": sentence(found.name, found.layers, scored, found.growth),
        "notes": list(found.notes),
        "rebuilding_error": max(one.rebuilt or math.nan for one in found.layers),
        "stack": content["growth"],
        "skills": {one.name: asdict(one) for one in scored},
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
    names = [*(model.name for model in (*MODELS, *MORE_MODELS)), *OURS]
    parser.add_argument("--only", metavar="NAME", action="append", choices=names)
    parser.add_argument("--norms", action="store_true", help="also norms of Jacobians, which no tier needs: hours")
    parser.add_argument("--weights", type=Path, default=Path("weights"))
    parser.add_argument("--wheels", type=Path)
    parser.add_argument("--explained", type=Path, default=Path("scans/explained"))
    parser.add_argument("--out", type=Path, default=Path("docs/explain"))
    return parser


if __name__ == "__main__":
    sys.exit(main())
