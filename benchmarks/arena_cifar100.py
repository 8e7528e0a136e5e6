"""Seventeen remedies on ViT-Ti, patch 4, CIFAR-100: 12 and 24 layers, pre- and post-norm, 3 seeds, on one H200.

python -m benchmarks.arena_cifar100                    # all of it -> benchmarks/results/arena_cifar100, docs/arena
python -m benchmarks.arena_cifar100 --minutes 9        # in pieces; exit code 3 while something is left
python -m benchmarks.arena_cifar100 --mps              # kernels of its processes beside each other, not in turns
python -m benchmarks.arena_cifar100 --out DIR --runs DIR --quiet    # words beside --out go to `unsmooth arena`

What it takes:

    entrants    plain and 14 remedies on every model; peri_norm on pre-norm, b2t and deepnorm on post-norm alone, the
                other model refuses them: (1 + 14 + 1) + (1 + 14 + 2) = 33 at each of two depths
    steps       900 for each of 3 seeds and each of 3 rates: 900 x (3 + 3) = 5,400 an entrant; rates are chosen on a
                tenth of the training images, which those runs do not learn from
    measured    22.6 minutes of an H200 for the 396 runs of 66 entrants, up to 24 runs at a time

Compiling takes tens of seconds for each of 66 entrants and keeps a processor busy, not the GPU: eight processes on 16
processors have about eight of them each, some four minutes, while the others train. Each has three runs side by side.

Two epochs are a short training, which asks how quickly a model learns at all: nothing to overfit, so no stochastic
depth, RandAugment, mixup, cutmix or smoothing. The grid of rates reaches from what deep post-norm models bear to what
pre-norm ones like, in steps of four.
"""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
from collections.abc import Sequence
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.evidence_page import table
from benchmarks.multi_process_service import multi_process_service
from unsmooth.cli.app import run
from unsmooth.evidence.interval import LEVEL
from unsmooth.files import write_whole
from unsmooth.report.arena import rates_chosen_on, rates_in_words

RESULTS = Path(__file__).parent / "results" / "arena_cifar100"
DOCS = Path(__file__).parent.parent / "docs" / "arena"

REMEDIES = (
    *("deescalate", "sharpen", "smooth", "contranorm", "attnscale", "featscale", "neutreno", "gfsa", "centred"),
    *("layerscale", "residual_scaling", "rezero", "value_residual", "sigma_reparam"),
    *("peri_norm", "b2t", "deepnorm"),
)
SETTINGS = {
    "patch": "4",
    "network.drop_path": "0",
    "augment.rand": "",
    "augment.mixup": "0",
    "augment.cutmix": "0",
    "augment.smoothing": "0",
}
GRID = ("depth=12,24", "norm=pre,post")
TITLE = "# Arena: which remedy helps, at equal budget"
TEXT = """\
ViT-Ti with patches of four pixels on CIFAR-100, 12 and 24 layers, pre- and post-norm. Every run makes 900 steps of 96
images, {seeds} seeds each, every remedy on every model at its own best rate: {rates}. Rates are chosen by runs of
{length} length with a seed that is never scored; where the last that was tried is the best (edge), a better one may lie
beyond. {chosen_on} A
difference is paired by seed with the plain model; a verdict needs its whole 95 % interval on one side of 0. Of
{compared} comparisons of models that do not differ, about {by_chance:.0f} would be called different. This is how
quickly models begin to learn, not how well they end. Step times are of a GPU that other runs used too, and waver;
[remedies' costs](../remedies/README.md) are of one at rest. [The page](arena.html) has similarity by layer, memory
and reasons of failures; `benchmarks/arena_cifar100.py` has the command."""


def words(out: Path, more: Sequence[str] = (), remedies: str = ",".join(REMEDIES)) -> list[str]:
    """What is given to `unsmooth`; of an option that is given twice the last one counts."""
    return [
        *("arena", "vit_cifar100", "--data", "data/cifar100", "--remedies", remedies),
        *(word for axis in GRID for word in ("--grid", axis)),
        *(word for name, value in SETTINGS.items() for word in ("--set", f"{name}={value}")),
        *("--rates", "1e-4,4e-4,1.6e-3", "--seeds", "3", "--budget", "900steps"),
        *("--probe", "1", "--hold-out", "0.1"),
        *("--processes", "8", "--out", str(out), "--runs", "runs/arena_cifar100", *more),
    ]


def publish(out: Path, docs: Path) -> None:
    """The page and its figure, and a page of documentation that leads there."""
    for name in ("arena.html", "arena.svg"):
        write_whole(docs / name, (out / name).read_bytes())
    found = json.loads((out / "arena.json").read_text(encoding="utf-8"))
    rows = [_row(line) for line in found["standings"]]
    heads = [
        "model",
        "remedy",
        "rate",
        "accuracy in % [95 %]",
        "minus plain [95 %]",
        "verdict",
        "step time",
        "failures",
    ]
    made = found["made"]
    compared = sum(line["verdict"] is not None for line in found["standings"])
    text = TEXT.format(
        compared=compared,
        by_chance=compared * (1 - LEVEL),
        seeds=len(found["seeds"]),
        rates=rates_in_words(found["rates"], found["rates_beyond"]),
        length="the same" if found["length_of_rates"] == 1 else f"{found['length_of_rates']:g} times the",
        chosen_on=rates_chosen_on(found["hold_out_of_rates"]),
    )
    commits = ", ".join(made["commits"]) or "unknown"
    told = f"{', '.join(made['hardware'])}, {made['gpu_minutes']:g} GPU minutes, commit {commits}."
    parts = (TITLE, textwrap.fill(text, 120), table(heads, rows), told)
    write_whole(docs / "README.md", "\n\n".join(parts) + "\n")


def _row(line: dict[str, Any]) -> list[str]:
    ratio, rate = line["step_time_over_plain"], line["rate"]
    return [
        line["model"],
        f"`{line['remedy']}`",
        "–" if rate is None else f"{rate:g}{' (edge)' if line['rate_at_edge'] else ''}",
        _points(line["score"]),
        _points(line["difference"]),
        line["verdict"] or "–",
        "–" if ratio is None else f"{ratio:.2f}×",
        "; ".join(failure.partition(":")[0] for failure in line["failures"])
        or ("none" if line["done"] else "not finished"),
    ]


def _points(interval: dict[str, Any] | None) -> str:
    if interval is None:
        return "–"
    ends = [interval["low"], interval["high"]]
    told = f" [{100 * ends[0]:.1f}, {100 * ends[1]:.1f}]" if None not in ends else ""
    return f"{100 * interval['value']:.1f}{told}"


def main() -> int:
    """Carry it out; where all is done, publish it."""
    reader = argparse.ArgumentParser(description="The arena on CIFAR-100.", allow_abbrev=False)
    reader.add_argument("--out", type=Path, default=RESULTS)
    reader.add_argument("--docs", type=Path, default=DOCS)
    reader.add_argument("--mps", action="store_true", help="run kernels of several processes beside each other")
    reader.add_argument("--remedies", default=",".join(REMEDIES), help="some of them; others join in a later call")
    given, more = reader.parse_known_args()
    with multi_process_service() if given.mps else nullcontext():
        code = run(words(given.out, more, given.remedies))
    if code == 0 and find_spec("altair") is None:
        print(f"all is in {given.out}; the same command makes the page where altair is installed", file=sys.stderr)
    elif code == 0:
        publish(given.out, given.docs)
    return code


if __name__ == "__main__":
    sys.exit(main())
