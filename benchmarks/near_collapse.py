"""Errors of float32 metrics near collapse and at odd scales, beside those of an older version, and what a scan costs.

    git archive c02b773 src | tar x -C /tmp/before
    python -m benchmarks.near_collapse --before /tmp/before/src [--quick] [--out benchmarks/results/near_collapse.json]
    python -m benchmarks.near_collapse --before /tmp/before/src --cost-only --rounds 100

The reference is 64 bits of mantissa (numpy's longdouble) on the same float32 numbers. Each version runs in processes of
its own. For the cost both scan the same batches in turn, many short times, in processor time: of the scan without the
hash of all weights, of the thread that scans, and of all threads, the hash's among them. The median of ratios of
neighbours, each over the plain pass of its own process, is given with its 95 % interval, and how far the same version
is from itself.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import binom

ROOT = Path(__file__).parents[1]
WHAT = (
    "Worst relative errors of float32 metrics against longdouble, by diversity, by residual and by scale; "
    "and what a scan costs."
)
DIVERSITIES = tuple(10.0**-power for power in range(1, 13))
SIZES = ((12, 256, 8, 128), (12, 256, 2, 512), (6, 128, 16, 64), (12, 768, 2, 128))
"""For the cost: layers, dim, sequences, tokens."""
SCALES = (1e-30, 1e-20, 1e-10, 1.0, 1e10, 1e20, 1e30)


def _spread(x: np.ndarray) -> np.ndarray:
    return x - x.mean(axis=0)


def _composite(x: np.ndarray) -> np.longdouble:
    return np.sqrt(np.abs(x).sum(axis=0).max() * np.abs(x).sum(axis=1).max())


def _mean_cosine(x: np.ndarray) -> np.longdouble:
    unit = x / np.sqrt((x**2).sum(axis=1, keepdims=True))
    return ((unit.sum(axis=0) ** 2).sum() - len(x)) / (len(x) * (len(x) - 1))


METRICS: dict[str, Callable[[np.ndarray], Any]] = {
    "token_similarity": lambda x: len(x) * (x.mean(axis=0) ** 2).sum() / (x**2).sum(),
    "mean_cosine": _mean_cosine,
    "token_diversity": lambda x: (_spread(x) ** 2).sum() / (x**2).sum(),
    "hfc_lfc": lambda x: np.sqrt((_spread(x) ** 2).sum() / (len(x) * (x.mean(axis=0) ** 2).sum())),
    "rank_one_residual": lambda x: _composite(_spread(x)) / _composite(x),
    "dirichlet_energy": lambda x: (_spread(x) ** 2).sum(),
}


def _inputs(value: float, by: str, seed: int) -> torch.Tensor:
    """Tokens of about this diversity, of this residual, or of this scale."""
    generator = torch.Generator().manual_seed(seed)
    common, own = torch.randn(1, 1, 64, generator=generator), torch.randn(1, 100, 64, generator=generator)
    if by == "diversity":
        return common + value**0.5 * own
    if by == "residual":  # all features but one vanish: float32 has no numbers that are all so close otherwise
        vanishing = value * own
        vanishing[..., 0] = 1.7
        return vanishing
    return value * (0.7 * common + own)


def errors(seeds: int) -> dict[str, Any]:
    """Worst relative error of each metric, as it is and as a scan measures it, over inputs of each value."""
    from unsmooth import functional
    from unsmooth.functional import Tokens
    from unsmooth.functional._blocks import Workspace, blocks, joined, light_tokens, measure

    def scanned(name: str, x: torch.Tensor) -> float:
        tokens = Tokens(x)
        sums = joined([measure(block) for block in blocks(tokens, Workspace())])
        light = light_tokens({"count_B": tokens.count_B, **sums}, x.shape, sums["norms_BN"].dtype)
        return float(functional.METRICS[name].function(light))

    def worst(name: str, value: float, by: str) -> float:
        found = []
        for seed in range(seeds):
            x = _inputs(value, by, seed)
            want = METRICS[name](x[0].numpy().astype(np.longdouble))
            if want > np.finfo(np.float32).max or want < np.finfo(np.float32).tiny:
                continue  # the result's own type cannot hold it
            both = float(functional.METRICS[name].function(x)), scanned(name, x)
            found += [float(abs(np.longdouble(got) / want - 1)) if np.isfinite(got) else float("inf") for got in both]
        return max(found, default=float("nan"))

    rows = {"diversity": DIVERSITIES, "residual": DIVERSITIES, "scale": SCALES}
    return {
        by: {name: {f"{value:.0e}": worst(name, value, by) for value in values} for name in METRICS}
        for by, values in rows.items()
    }


def serve(layers: int, dim: int, sequences: int, length: int) -> None:
    """Scan and pass plainly each time a line comes; tell the processor seconds of each."""
    from transformers import BertConfig, BertModel

    import unsmooth

    torch.set_num_threads(1)
    torch.manual_seed(0)
    sizes = {"hidden_size": dim, "num_attention_heads": dim // 64, "intermediate_size": 4 * dim}
    model = BertModel(BertConfig(num_hidden_layers=layers, max_position_embeddings=length, **sizes)).eval()
    mask = torch.ones(sequences, length, dtype=torch.long)
    mask[1::2, -length // 8 :] = 0
    data = [{"input_ids": torch.randint(1000, 30000, (sequences, length)), "attention_mask": mask}]

    def plain() -> None:
        with torch.no_grad():
            model(**data[0])

    def scan() -> None:
        unsmooth.scan(model, data, progress=False)

    def measuring() -> None:
        unsmooth.scan(model, data, progress=False, fingerprint=False)

    def seconds(way: Callable[[], object]) -> dict[str, float]:
        own, all_threads = time.thread_time(), time.process_time()
        way()
        return {"own": time.thread_time() - own, "all": time.process_time() - all_threads}

    scan()
    print("ready", flush=True)
    for _ in sys.stdin:
        told = {name: seconds(way) for name, way in (("plain", plain), ("measuring", measuring), ("scan", scan))}
        print(json.dumps(told), flush=True)


# By what is counted: a way to scan, and whose processor time it is.
COSTS = {"measuring": ("measuring", "all"), "scan_own_thread": ("scan", "own"), "scan_all_threads": ("scan", "all")}
LAUNCHES = 4  # where a process finds its memory is good or bad luck for as long as it runs


def cost(versions: dict[str, str], rounds: int, size: tuple[int, int, int, int]) -> dict[str, Any]:
    """Scans of all versions in turn, `now` twice to see how far a version is from itself."""
    found: dict[str, list[dict[str, dict[str, float]]]] = {name: [] for name in versions}
    for _ in range(LAUNCHES):
        served = {name: _start(source, "--serve", *map(str, size)) for name, source in versions.items()}
        for process in served.values():
            assert process.stdout is not None
            process.stdout.readline()
        for turn in range(-(-rounds // LAUNCHES)):
            for name in list(served) if turn % 2 else reversed(list(served)):
                process = served[name]
                assert process.stdin is not None
                assert process.stdout is not None
                process.stdin.write("\n")
                process.stdin.flush()
                found[name].append(json.loads(process.stdout.readline()))
        for process in served.values():
            process.communicate()

    def over(name: str, other: str, way: str, whose: str) -> dict[str, Any]:
        pairs = zip(found[name], found[other], strict=True)
        # Both scans over the plain pass of all rounds, which is the same work in either.
        plain = {one: statistics.median(each["plain"]["all"] for each in found[one]) for one in (name, other)}
        ratios = sorted(a[way][whose] / plain[name] / (b[way][whose] / plain[other]) for a, b in pairs)
        # Of the median, by ranks: those that a count of fair coins leaves out on either side with 2.5 % at most.
        low = int(binom.ppf(0.025, len(ratios), 0.5))
        return {"median": statistics.median(ratios), "interval": [ratios[max(0, low - 1)], ratios[-max(1, low)]]}

    def over_plain(name: str, way: str, whose: str) -> float:
        return statistics.median(one[way][whose] / one["plain"]["all"] for one in found[name])

    return {
        "size": dict(zip(("layers", "dim", "sequences", "tokens"), size, strict=True)),
        "rounds": len(found["now"]),
        **{
            what: {
                "over_plain": {name: over_plain(name, *how) for name in found},
                "now_over_before": over("now", "before", *how),
                "now_over_now": over("now", "now again", *how),
            }
            for what, how in COSTS.items()
        },
    }


def _start(source: str, *words: str) -> subprocess.Popen[str]:
    """This script with the library of another folder."""
    environment = {**os.environ, "PYTHONPATH": source, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, __file__, *words]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)


PAGE = """# Numbers near collapse

Tokens of deep networks may differ in their last digits only, and be of any length. What the metrics do about it, and
what no metric can. The tables are worst relative errors over {seeds} random inputs (100 float32 tokens, 64 features),
each as the function and as a scan measures it, against 64 bits of mantissa on the same numbers: commit {before} →
now. ∞ is NaN or an overflow; a dash, that float32 cannot hold the result. `python -m benchmarks.near_collapse`
measures them again.

- **Metrics as functions** work in float64 on what they are given. Tokens are centred in two steps: the first token is
  taken off all, which loses no digit of what differs, and then the mean of the rest.
- **A scan** works in float32 the same way, with the shortest token, so that a massive one does no harm. Where a token
  is shorter than 1e-3 or longer than 1e12 its block is measured in float64. A monitor on a GPU, which may not wait
  for an answer, is the exception: there tokens shorter than 1e-19 count as zero, and beyond 1e18 the value is NaN.
- What a scan does in float32 shows in two places: the mean cosine of 8,192 equal tokens is off by 1e-5, and where the
  token mean is a ten-thousandth of the tokens or less, as of tokens and their negatives, it has only the digits that
  float32 leaves it: `token_similarity` of 2e-10 is off by 1e-3, of 2e-14 by a third. The functions have all digits.
- **Zero** is a token of zeros; in float64 input also one shorter than 1.5e-154.
- `dirichlet_energy` and `feature_map_variance` are squares: what float32 cannot hold is 0 or infinite.

{tables}
## What a scan costs

Processor time over that of the plain pass of a BERT, one thread, commit {before} → now, and the median ratio of the two
with its 95 % interval ({rounds} scans of each in turn). Measuring leaves out the hash of all weights
(`fingerprint=False`). The hash, a SHA-256 of every byte, runs in threads beside the scan: it takes time of the
processor, 0.6 seconds a gigabyte, and no time of a scan that has a core to spare for it.

{cost}
## What the activations' type has rounded away

A number can be exact about tokens that are themselves rounded. Rounding to a type of machine epsilon ε adds about
ε²/24 of the energy to what differs: 2.5e-6 for bfloat16, 4.0e-8 for float16, 5.9e-16 for float32. A true diversity at
this level is measured as about twice as much, at ten times the level as 10 % too much, and below it as anything.
`MetricCard.rounding` of a scan has the level for each metric that is 0 for equal tokens; where a curve comes within
ten times of it, a note says so and the charts draw it. What the model's own arithmetic in that type rounds comes on
top.

## What attention has by chance

|λ₂| of attention needs something to be compared with, and equal entropy alone does not say what.
`random_second_eigenvalue` has two nulls, as quantiles simulated at the map's own size (`python -m
benchmarks.random_markov`):

- **Dirichlet rows** (`random_markov`): independent weights, with few entries that are large.
- **Softmax of random logits** (`random_softmax`) has larger entries at the same entropy, so that its |λ₂| is larger:
  trained heads look structured beside Dirichlet rows by default. A head above it has more than entropy and a softmax
  explain.

The radius √(n Var) of the circular law, which was drawn before, is the limit of large n, and lies below |λ₂| of
random maps.
"""


def _cell(value: float | None) -> str:
    return "∞" if value is None else f"{value:.0e}"


def page(content: dict[str, Any]) -> str:
    """docs/numerics.md."""
    tables = []
    for by, title in (("diversity", "By diversity"), ("residual", "By residual"), ("scale", "By scale")):
        values = list(next(iter(content["now"][by].values())))
        lines = [f"## {title}", "", f"| | {' | '.join(values)} |", "|---|" + "---|" * len(values)]
        for name, row in content["now"][by].items():
            then = content["then"][by][name]
            unheld = by == "scale" and name == "dirichlet_energy"
            cells = [
                "–" if unheld and row[key] is None else f"{_cell(then[key])} → {_cell(row[key])}" for key in values
            ]
            lines.append(f"| `{name}` | {' | '.join(cells)} |")
        tables.append("\n".join([*lines, ""]))
    cost, rounds = _cost_table(content["cost"]), content["cost"][0]["rounds"]
    told = {"tables": "\n".join(tables), "cost": cost, "rounds": rounds}
    return PAGE.format(seeds=content["seeds"], before=content["before"], **told)


def _cost_table(found: list[dict[str, Any]]) -> str:
    titles = ("layers × dim, sequences × tokens", "measuring", "a scan: its own thread", "a scan: all threads")
    lines = [f"| {' | '.join(titles)} |", "|---|---|---|---|"]
    for one in found:
        size, cells = one["size"], []
        for what in COSTS:
            over, ratio = one[what]["over_plain"], one[what]["now_over_before"]
            low, high = ratio["interval"]
            ends = f"{over['before']:.2f} → {over['now']:.2f}"
            cells.append(f"{ends}: {ratio['median']:.2f} [{low:.2f}, {high:.2f}]")
        name = f"{size['layers']} × {size['dim']}, {size['sequences']} × {size['tokens']}"
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def main() -> None:
    """Measure both versions and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", help="the src folder of another version")
    parser.add_argument("--commit", default="c02b773", help="which one it is")
    parser.add_argument("--quick", action="store_true", help="few seeds and rounds, to try the script")
    parser.add_argument("--cost-only", action="store_true", help="leave the errors as they were measured")
    parser.add_argument("--rounds", type=int, default=24, help="of scans, for the cost")
    parser.add_argument("--out", default="benchmarks/results/near_collapse.json")
    parser.add_argument("--errors", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--serve", type=int, nargs=4, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.errors:
        print(json.dumps(errors(given.errors)))
        return
    if given.serve:
        serve(*given.serve)
        return
    seeds, rounds = (2, 3) if given.quick else (10, given.rounds)
    now = str(ROOT / "src")
    content: dict[str, Any]
    if given.cost_only:
        content = json.loads(Path(given.out).read_text())
    else:
        now_errors = json.loads(_start(now, "--errors", str(seeds)).communicate()[0])
        content = {"what": WHAT, "before": given.commit, "seeds": seeds, "now": now_errors}
    if given.before and not given.cost_only:
        content["then"] = json.loads(_start(given.before, "--errors", str(seeds)).communicate()[0])
    if given.before:
        versions = {"before": given.before, "now": now, "now again": now}
        content["cost"] = [cost(versions, rounds, size) for size in SIZES]
    text = json.dumps(content, indent=1).replace("Infinity", "null").replace("NaN", "null")
    Path(given.out).write_text(text + "\n")
    if given.before:
        (ROOT / "docs/numerics.md").write_text(page(json.loads(text)))
    print(text)


if __name__ == "__main__":
    main()
