"""What a default scan costs over the plain forward pass, beside the n×n way of measuring.

    python -m benchmarks.scan_cost [--quick] [--out benchmarks/results/scan_cost.json]

Time: every batch goes through the plain model and, right after, through the measured one, so that both meet the same
weather; each round gives one ratio of sums, and the median over rounds is reported. A whole `unsmooth.scan` call is
timed, hashes and manifest included. Memory: the peak
resident size of fresh processes per way, their median since the heap's luck alone moves it by 5 %, for 10 and for
1,000 batches.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

import unsmooth
from unsmooth.errors import UnsmoothError
from unsmooth.files import write_whole

TOKENS = (128, 512, 2048)
TOKENS_PER_BATCH = 4096
LIMITS = {"time": 1.10, "memory": 1.05}
Batch = dict[str, Tensor]


def minilm() -> nn.Module:
    """all-MiniLM-L6-v2; its 512 positions repeated to 2,048 so that longer texts can be timed."""
    from transformers import BertConfig, BertModel

    try:
        model = unsmooth.load("all-MiniLM-L6-v2", offline=True)
    except UnsmoothError:
        config = BertConfig(hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536)
        model = BertModel(config)
    embeddings = model.embeddings
    old = embeddings.position_embeddings.weight.data
    embeddings.position_embeddings = nn.Embedding.from_pretrained(old.repeat(4, 1))
    longest = max(TOKENS)
    embeddings.register_buffer("position_ids", torch.arange(longest).expand(1, -1), persistent=False)
    embeddings.register_buffer("token_type_ids", torch.zeros(1, longest, dtype=torch.long), persistent=False)
    return model.eval()


def base() -> nn.Module:
    """A 12-layer encoder of width 768 with random weights: BERT-base's shape."""
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    return BertModel(BertConfig(max_position_embeddings=max(TOKENS))).eval()


MODELS: dict[str, Callable[[], nn.Module]] = {"MiniLM (6 layers, d 384)": minilm, "12 layers, d 768": base}
# Rounds and batches per round: the larger model takes four times as long and needs fewer of both.
EFFORT = {"MiniLM (6 layers, d 384)": (3, 16), "12 layers, d 768": (2, 5)}


def make_batches(tokens: int, batches: int, size: int) -> list[Batch]:
    """Random ids in which every second sequence is padded by an eighth, as texts of unequal length are."""
    generator = torch.Generator().manual_seed(0)
    mask = torch.ones(size, tokens, dtype=torch.long)
    mask[1::2, -tokens // 8 :] = 0
    return [
        {"input_ids": torch.randint(1000, 30000, (size, tokens), generator=generator), "attention_mask": mask}
        for _ in range(batches)
    ]


def plain(model: nn.Module, batches: Iterable[Batch]) -> None:
    """The forward pass alone."""
    with torch.no_grad():
        for batch in batches:
            model(**batch)


def scan(model: nn.Module, batches: Iterable[Batch]) -> None:
    """The default scan: six metrics, massive tokens and outlier dimensions, hashes, manifest."""
    unsmooth.scan(model, batches, progress=False)


def pairwise(model: nn.Module, batches: Iterable[Batch]) -> None:
    """One metric the usual way: the full cosine matrix of every layer."""
    means: list[Tensor] = []

    def hook(module: nn.Module, args: object, output: Tensor) -> None:
        unit = nn.functional.normalize(output, dim=-1)
        similarity = unit @ unit.mT
        count = output.shape[1]
        means.append((similarity.sum(dim=(1, 2)) - count) / (count * (count - 1)))

    handles = [layer.register_forward_hook(hook) for layer in model.encoder.layer]
    try:
        plain(model, batches)
    finally:
        for handle in handles:
            handle.remove()


WAYS: dict[str, Callable[[nn.Module, Iterable[Batch]], None]] = {"plain": plain, "scan": scan, "pairwise": pairwise}


class Alternating:
    """Hands out batches, each after a plain pass of a twin of the model, and adds up what those passes took."""

    def __init__(self, twin: nn.Module, batches: list[Batch]) -> None:
        self.twin, self.batches, self.seconds = twin, batches, 0.0

    def __iter__(self) -> Iterator[Batch]:
        for batch in self.batches:
            start = time.perf_counter()
            plain(self.twin, [batch])
            self.seconds += time.perf_counter() - start
            yield batch


def ratio(way: str, model: nn.Module, twin: nn.Module, batches: list[Batch]) -> tuple[float, float]:
    """Time of one way over that of the plain pass of the same batches, and the plain seconds."""
    turns = Alternating(twin, batches)
    start = time.perf_counter()
    WAYS[way](model, iter(turns))
    whole = time.perf_counter() - start
    return whole / turns.seconds - 1.0, turns.seconds


def time_ratios(name: str, tokens: int, rounds: int, batches: int) -> dict[str, object]:
    """Median over rounds of each way's time over the plain pass."""
    model = MODELS[name]()
    twin = copy.deepcopy(model)
    data = make_batches(tokens, batches, max(TOKENS_PER_BATCH // tokens, 1))
    found: dict[str, list[tuple[float, float]]] = {"plain": [], "scan": [], "pairwise": []}
    for way in found:
        ratio(way, model, twin, data[:1])
    for _ in range(rounds):
        for way, measured in found.items():
            measured.append(ratio(way, model, twin, data))
    return {
        "model": name,
        "tokens": tokens,
        "sequences_per_batch": len(data[0]["input_ids"]),
        "batches": batches,
        "rounds": rounds,
        "plain_seconds": statistics.median(seconds for _, seconds in found["plain"]),
        # A plain pass over a plain pass: what is left of the weather.
        **{f"{way}_over_plain": statistics.median(one for one, _ in measured) for way, measured in found.items()},
        "scan_rounds": [one for one, _ in found["scan"]],
    }


def peak_memory(name: str, tokens: int, way: str, batches: int, size: int) -> float:
    """Peak resident MiB of a fresh process that runs one way."""
    words = ["--child", json.dumps([name, tokens, way, batches, size])]
    done = subprocess.run([sys.executable, "-m", "benchmarks.scan_cost", *words], capture_output=True, check=True)
    return float(done.stdout)


def child(name: str, tokens: int, way: str, batches: int, size: int) -> None:
    """Run one way and print this process's peak resident size in MiB."""
    import unsmooth.scanning

    model = MODELS[name]()
    # One batch at a time, so that the data itself does not grow with the number of batches.
    data = make_batches(tokens, 1, size)
    if way == "scan":
        unsmooth.scan(model, (data[0] for _ in range(batches)), progress=False)
    else:
        for _ in range(batches):
            WAYS[way](model, data)
    print(peak_resident_mib())


def peak_resident_mib() -> float:
    """This process's own high-water mark: `ru_maxrss` would include its parent's size at the fork."""
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def memory_ratios(name: str, tokens: int, batches: int, size: int, processes: int) -> dict[str, object]:
    """Peak memory of a scan over that of the plain pass, each the median of some processes that take turns."""
    rounds = [
        {way: peak_memory(name, tokens, way, batches, size) for way in ("plain", "scan")} for _ in range(processes)
    ]
    peaks = {way: statistics.median(peak[way] for peak in rounds) for way in ("plain", "scan")}
    return {
        "model": name,
        "tokens": tokens,
        "sequences_per_batch": size,
        "batches": batches,
        **{f"{way}_mib": peak for way, peak in peaks.items()},
        "scan_over_plain": peaks["scan"] / peaks["plain"],
        "processes": rounds,
    }


def tell(row: dict[str, object]) -> dict[str, object]:
    """Say how it goes: the whole run takes half an hour."""
    print(
        {key: value for key, value in row.items() if key not in {"scan_rounds", "processes"}},
        file=sys.stderr,
        flush=True,
    )
    return row


def show(results: dict[str, list[dict[str, object]]]) -> None:
    """Print both tables."""
    print(f"{'model':28}{'tokens':>8}{'plain s':>10}{'plain':>8}{'scan':>8}{'n×n':>8}")
    for row in results["time"]:
        print(
            f"{row['model']:28}{row['tokens']:>8}{row['plain_seconds']:>10.2f}"
            f"{row['plain_over_plain']:>8.3f}{row['scan_over_plain']:>8.3f}{row['pairwise_over_plain']:>8.3f}"
        )
    print(f"\n{'model':28}{'tokens':>8}{'batches':>9}{'plain MiB':>11}{'scan MiB':>10}{'ratio':>8}")
    for row in results["memory"]:
        print(
            f"{row['model']:28}{row['tokens']:>8}{row['batches']:>9}{row['plain_mib']:>11.0f}"
            f"{row['scan_mib']:>10.0f}{row['scan_over_plain']:>8.3f}"
        )


def time_rows(quick: bool) -> list[dict[str, object]]:
    """Times of all models and lengths."""
    effort = dict.fromkeys(MODELS, (1, 2)) if quick else EFFORT
    return [tell(time_ratios(name, tokens, *effort[name])) for name in MODELS for tokens in TOKENS]


def memory_rows(quick: bool) -> list[dict[str, object]]:
    """Memory of all models and lengths, then of few and of many batches."""
    few, processes, many = (2, 1, 20) if quick else (4, 5, 1000)
    rows = [
        tell(memory_ratios(name, tokens, few, max(TOKENS_PER_BATCH // tokens, 1), processes))
        for name in MODELS
        for tokens in TOKENS
    ]
    return rows + [tell(memory_ratios(next(iter(MODELS)), 128, count, 4, 1)) for count in (10, many)]


def kept(out: Path) -> dict[str, list[dict[str, object]]]:
    """What an earlier run measured: the parts can be run one by one."""
    held = json.loads(out.read_text()) if out.exists() else {}
    return {"time": held.get("time", []), "memory": held.get("memory", [])}


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one round, fewer batches: to see that it runs")
    parser.add_argument("--part", choices=("time", "memory", "both"), default="both")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/scan_cost.json"))
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        child(*json.loads(arguments.child))
        return
    results: dict[str, list[dict[str, object]]] = kept(arguments.out)
    if arguments.part in ("time", "both"):
        results["time"] = time_rows(arguments.quick)
    if arguments.part in ("memory", "both"):
        results["memory"] = memory_rows(arguments.quick)
    show(results)
    machine = {
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
    report = {"what": __doc__.splitlines()[0], "limits": LIMITS, "machine": machine, **results}
    write_whole(arguments.out, json.dumps(report, indent=1) + "\n")
    print(f"\nwritten to {arguments.out}")


if __name__ == "__main__":
    main()
