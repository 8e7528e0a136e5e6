"""Remedies on ViT-Ti, patch 4, CIFAR-100, on one H200: seventeen of them for two epochs, eight for longer.

python -m benchmarks.arena_cifar100                    # all of it -> benchmarks/results/arena_cifar100, docs/arena
python -m benchmarks.arena_cifar100 --longer           # eight of them for longer -> …/arena_cifar100_longer, docs/arena
python -m benchmarks.arena_cifar100 --total-budget 9m  # in pieces; exit code 3 while something is left
python -m benchmarks.arena_cifar100 --mps              # kernels of its processes beside each other, not in turns
python -m benchmarks.arena_cifar100 --results DIR --runs DIR --quiet    # other words go to `unsmooth arena`

What the first takes:

    entrants    plain and 14 remedies on every model; peri_norm on pre-norm, b2t and deepnorm on post-norm alone, the
                other model refuses them: (1 + 14 + 1) + (1 + 14 + 2) = 33 at each of two depths
    steps       900 for each of 3 seeds and each of 3 rates: 900 x (3 + 3) = 5,400 an entrant, and 900 for each rate
                beyond these where the best lies at their end; rates are chosen on a tenth of the training images,
                which those runs do not learn from

Compiling takes tens of seconds for each of 66 entrants and keeps a processor busy, not the GPU: eight processes on 16
processors have about eight of them each, some four minutes, while the others train. Each has three runs side by side.

Two epochs are a short training, which asks how quickly a model learns at all: nothing to overfit, so no stochastic
depth, RandAugment, mixup, cutmix or smoothing. The grid of rates reaches from what deep post-norm models bear to what
pre-norm ones like, in steps of four. Whether what helps there helps for longer is what the second asks, of 12 layers:
its rates are chosen by runs of as many steps as the first one's, whose results it takes where they are there.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import textwrap
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.evidence_page import table
from benchmarks.multi_process_service import multi_process_service
from unsmooth.cli.app import run
from unsmooth.evidence.interval import LEVEL
from unsmooth.files import write_whole
from unsmooth.report.arena import rates_chosen_on, rates_in_words

RESULTS = Path(__file__).parent / "results"
DOCS = Path(__file__).parent.parent / "docs" / "arena"


@dataclass(frozen=True)
class Match:
    """One of the two.

    Args:
        name: Of its page in the documentation.
        folder: Of its results.
        remedies: Who takes part.
        depths: Of the models, as an axis of a grid.
        steps: Of a run.
        probe: Share of them that a run makes to choose a rate.
    """

    name: str
    folder: str
    remedies: tuple[str, ...]
    depths: str
    steps: int
    probe: float


SHORT = Match(
    "arena",
    "arena_cifar100",
    (
        *("deescalate", "sharpen", "smooth", "contranorm", "attnscale", "featscale", "neutreno", "gfsa", "centred"),
        *("layerscale", "residual_scaling", "rezero", "value_residual", "sigma_reparam"),
        *("peri_norm", "b2t", "deepnorm"),
    ),
    "depth=12,24",
    900,
    1.0,
)
LONGER = Match(
    "longer",
    "arena_cifar100_longer",
    (
        *("deescalate", "contranorm", "neutreno", "centred", "layerscale", "rezero"),
        *("b2t", "deepnorm"),
    ),
    "depth=12",
    3600,
    0.25,
)
SETTINGS = {
    "patch": "4",
    "network.drop_path": "0",
    "augment.rand": "",
    "augment.mixup": "0",
    "augment.cutmix": "0",
    "augment.smoothing": "0",
}
NORMS = "norm=pre,post"
TITLE = "# Arena: which remedy helps, at equal budget"
TEXT = """\
ViT-Ti with patches of four pixels on CIFAR-100, {layers} layers, pre- and post-norm. Every run makes {steps:,} steps of
96 images, {seeds} seeds each, every remedy on every model at its own best rate: {rates}. Rates are chosen by runs of
{length} length with a seed that is never scored; where the last that was tried is the best (edge), a better one may lie
beyond. {chosen_on} A difference is paired by seed with the plain model; a verdict needs its whole 95 % interval on one
side of 0. Of {compared} comparisons of models that do not differ, about {by_chance:.0f} would be called different. This
is how quickly models begin to learn, not how well they end. Step times are of a GPU that other runs used too, and
waver; [remedies' costs](../remedies/README.md) are of one at rest. [The page]({name}.html) has similarity by layer,
memory and reasons of failures; `benchmarks/arena_cifar100.py` has the command."""
LASTS = "## Does it last?"
LASTS_TEXT = """\
The same with {times:g} times as many steps ({steps:,}, {epochs:.1f} epochs), {layers} layers, for {count} of the
remedies. Rates were chosen by runs of {length} length, those of the table above: one that suits a short run may be too
high for a long one. {kept} [The page]({name}.html)."""


def words(match: Match, out: Path, more: Sequence[str] = ()) -> list[str]:
    """What is given to `unsmooth`; of an option that is given twice the last one counts."""
    return [
        *("arena", "vit_cifar100", "--data", "data/cifar100", "--remedies", ",".join(match.remedies)),
        *(word for axis in (match.depths, NORMS) for word in ("--grid", axis)),
        *(word for name, value in SETTINGS.items() for word in ("--set", f"{name}={value}")),
        *("--rates", "1e-4,4e-4,1.6e-3", "--widen", "2", "--seeds", "3", "--budget", f"{match.steps}steps"),
        *("--probe", f"{match.probe:g}", "--hold-out", "0.1"),
        *("--processes", "8", "--out", str(out), "--runs", f"runs/{match.folder}", *more),
    ]


def take_rates(short: Path, longer: Path) -> None:
    """Runs that chose a rate in the first are those that the second would make: the same steps on the same images."""
    for source in short.glob("results/depth-12-*/*/rate-*.json"):
        target = longer / source.relative_to(short)
        if source.parent.name in {"plain", *LONGER.remedies} and not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target)


def publish(results: Path, docs: Path) -> None:
    """The pages and their figures of what is done, and a page of documentation that leads there."""
    short = _found(results, SHORT)
    parts = [TITLE, textwrap.fill(_about(SHORT, short), 120), *_told(short)]
    if (results / LONGER.folder / "arena.json").exists():
        longer = _found(results, LONGER)
        text = LASTS_TEXT.format(
            **_facts(LONGER),
            times=LONGER.steps / SHORT.steps,
            epochs=LONGER.steps * 96 / 50_000,
            count=len(LONGER.remedies),
            kept=_kept(short["standings"], longer["standings"]),
        )
        parts += [LASTS, textwrap.fill(text, 120), *_told(longer)]
    write_whole(docs / "README.md", "\n\n".join(parts) + "\n")
    for match in (SHORT, LONGER):
        for ending in ("html", "svg"):
            if (page := results / match.folder / f"arena.{ending}").exists():
                write_whole(docs / f"{match.name}.{ending}", page.read_bytes())


def _found(results: Path, match: Match) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((results / match.folder / "arena.json").read_text(encoding="utf-8"))
    return found


def _facts(match: Match) -> dict[str, Any]:
    """What both texts are made of."""
    return {
        "name": match.name,
        "layers": match.depths.removeprefix("depth=").replace(",", " and "),
        "steps": match.steps,
        "length": "the same" if match.probe == 1 else f"{match.probe:g} times the",
    }


def _about(match: Match, found: dict[str, Any]) -> str:
    compared = sum(line["verdict"] is not None for line in found["standings"])
    return TEXT.format(
        **_facts(match),
        compared=compared,
        by_chance=compared * (1 - LEVEL),
        seeds=len(found["seeds"]),
        rates=rates_in_words(found["rates"], found["rates_beyond"]),
        chosen_on=rates_chosen_on(found["hold_out_of_rates"]),
    )


def _kept(short: Sequence[dict[str, Any]], longer: Sequence[dict[str, Any]]) -> str:
    """How many verdicts of the first are those of the second too, by name."""
    before = {(line["model"], line["remedy"]): line["verdict"] for line in short}
    both = [(line, before[line["model"], line["remedy"]]) for line in longer if line["verdict"] is not None]
    told = []
    for word in ("better", "worse"):
        were = [line for line, then in both if then == word]
        still = sum(line["verdict"] == word for line in were)
        new = [f"`{line['remedy']}` ({line['model']})" for line, then in both if line["verdict"] == word != then]
        told.append(f"Of {len(were)} that were {word} than plain {still} still are; new: {', '.join(new) or 'none'}.")
    return " ".join(told)


def _told(found: dict[str, Any]) -> list[str]:
    """The table, and what made it."""
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
    commits = ", ".join(made["commits"]) or "unknown"
    told = f"{', '.join(made['hardware'])}, {made['gpu_minutes']:g} GPU minutes, commit {commits}."
    return [table(heads, [_row(line) for line in found["standings"]]), told]


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
    told = f" [{_percent(ends[0])}, {_percent(ends[1])}]" if None not in ends else ""
    return f"{_percent(interval['value'])}{told}"


def _percent(share: float) -> str:
    """In percent; what is rounded to nothing has no sign."""
    return f"{round(100 * share, 1) + 0.0:.1f}".replace("-", "−")


def main() -> int:
    """Carry it out; where all is done, publish it."""
    reader = argparse.ArgumentParser(description="The arena on CIFAR-100.", allow_abbrev=False)
    reader.add_argument("--longer", action="store_true", help="the second, of fewer remedies and more steps")
    reader.add_argument("--results", type=Path, default=RESULTS, help="folder in which each has its own")
    reader.add_argument("--docs", type=Path, default=DOCS)
    reader.add_argument("--mps", action="store_true", help="run kernels of several processes beside each other")
    given, more = reader.parse_known_args()
    match = LONGER if given.longer else SHORT
    out = given.results / match.folder
    if given.longer:
        take_rates(given.results / SHORT.folder, out)
    with multi_process_service() if given.mps else nullcontext():
        code = run(words(match, out, more))
    if code == 0 and find_spec("altair") is None:
        print(f"all is in {out}; the same command makes the page where altair is installed", file=sys.stderr)
    elif code == 0:
        publish(given.results, given.docs)
    return code


if __name__ == "__main__":
    sys.exit(main())
