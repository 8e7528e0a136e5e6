"""What a dominance verdict per head costs, beside all eigenvalues of attention in float64.

    python -m benchmarks.dominance_cost [--quick] [--device cuda] [--heads 5000] [--maps FILE.safetensors]
        [--out benchmarks/results/dominance_cost.json]

Heads over 197 tokens: random ones of many kinds, and real ones from a file with `maps` (heads, 197, 197) and
`eigenvalues` (heads, K). Both ways take turns on the same hundred heads in one process on one core, in seconds of
the processor there and of the clock with a GPU; time is counted for maps alone, and with the eigenvalues of H added
to both, one set per map, though in use many sequences share it. Verdicts are compared where the dense margin is beyond
0.001: within, there is no verdict to lose.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor

from unsmooth.files import write_whole
from unsmooth.spectra import HeadDominance, head_dominance, head_eigenvalues, random_markov

TOKENS, DIM, HEAD_DIM = 197, 768, 64
CHUNK = 100
TARGETS = {"same": 0.999, "faster": 6.0}
Heads = tuple[str, Tensor, Tensor | tuple[Tensor, Tensor]]


def noise(heads: int, temperature: float, generator: torch.Generator) -> Tensor:
    """Softmax of independent logits."""
    return (temperature * torch.randn(heads, TOKENS, TOKENS, generator=generator)).softmax(dim=-1)


def queries_and_keys(heads: int, gain: float, generator: torch.Generator) -> Tensor:
    """Random projections of random tokens that share a mean, as in an untrained model."""
    tokens = torch.randn(TOKENS, DIM, generator=generator) + torch.randn(DIM, generator=generator)
    query, key = (torch.randn(heads, DIM, HEAD_DIM, generator=generator) / math.sqrt(DIM) for _ in range(2))
    logits = (tokens @ query) @ (tokens @ key).mT / math.sqrt(HEAD_DIM)
    return (gain * logits).softmax(dim=-1)


def band(heads: int, offset: float, width: float, generator: torch.Generator) -> Tensor:
    """Tokens look around the place `offset` before their own."""
    place = torch.arange(TOKENS).float()
    distance = place[:, None] - place[None, :] - offset
    return (-((distance / width) ** 2) + torch.randn(heads, TOKENS, TOKENS, generator=generator)).softmax(dim=-1)


def patches(heads: int, width: float, generator: torch.Generator) -> Tensor:
    """A class token and a 14×14 grid that looks around itself."""
    row, column = torch.meshgrid(torch.arange(14.0), torch.arange(14.0), indexing="ij")
    grid = torch.stack([row.flatten(), column.flatten()], dim=1)
    logits = torch.zeros(heads, TOKENS, TOKENS)
    logits[:, 1:, 1:] = -torch.cdist(grid, grid).square() / width**2
    return (logits + torch.randn(heads, TOKENS, TOKENS, generator=generator)).softmax(dim=-1)


def sink(heads: int, strength: float, generator: torch.Generator) -> Tensor:
    """Most tokens look at the first one."""
    logits = torch.randn(heads, TOKENS, TOKENS, generator=generator)
    logits[:, :, 0] += strength
    return logits.softmax(dim=-1)


def dirichlet(heads: int, entropy: float, generator: torch.Generator) -> Tensor:
    """Random Markov matrices of a given entropy."""
    return torch.stack([random_markov(TOKENS, entropy, generator) for _ in range(heads)]).float()


def itself(heads: int, strength: float, generator: torch.Generator) -> Tensor:
    """Tokens look at themselves."""
    return (torch.randn(heads, TOKENS, TOKENS, generator=generator) + strength * torch.eye(TOKENS)).softmax(dim=-1)


KINDS: dict[str, Callable[[int, torch.Generator], Tensor]] = {
    "near uniform": lambda heads, source: noise(heads, 0.02, source),
    "logits, temperature 0.5": lambda heads, source: noise(heads, 0.5, source),
    "logits, temperature 1": lambda heads, source: noise(heads, 1.0, source),
    "logits, temperature 2": lambda heads, source: noise(heads, 2.0, source),
    "logits, temperature 4": lambda heads, source: noise(heads, 4.0, source),
    "peaked": lambda heads, source: noise(heads, 20.0, source),
    "queries and keys, as initialised": lambda heads, source: queries_and_keys(heads, 0.3, source),
    "queries and keys, medium": lambda heads, source: queries_and_keys(heads, 1.0, source),
    "queries and keys, large": lambda heads, source: queries_and_keys(heads, 3.0, source),
    "band": lambda heads, source: band(heads, 0.0, 3.0, source),
    "previous token": lambda heads, source: band(heads, 1.0, 0.7, source),
    "patches": lambda heads, source: patches(heads, 1.5, source),
    "sink": lambda heads, source: sink(heads, 8.0, source),
    "Dirichlet, entropy 0.9": lambda heads, source: dirichlet(heads, 0.9, source),
    "Dirichlet, entropy 0.6": lambda heads, source: dirichlet(heads, 0.6, source),
    "Dirichlet, entropy 0.3": lambda heads, source: dirichlet(heads, 0.3, source),
    "itself": lambda heads, source: itself(heads, 6.0, source),
}


def random_weights(heads: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Value and output weights: independent, or one the transpose of the other up to sign, small and large."""
    w_v = torch.randn(heads, DIM, HEAD_DIM, generator=generator) / math.sqrt(DIM)
    w_o = torch.randn(heads, HEAD_DIM, DIM, generator=generator) / math.sqrt(DIM)
    share = torch.linspace(-1.0, 1.0, heads)[torch.randperm(heads, generator=generator), None, None]
    gain = torch.exp(3.0 * torch.rand(heads, 1, 1, generator=generator) - 2.0)
    return w_v, gain * (share * w_v.mT + (1.0 - share.abs()) * w_o)


def random_heads(heads: int) -> Iterator[Heads]:
    """Chunks of heads of all kinds in turn."""
    generator = torch.Generator().manual_seed(0)
    kinds = list(KINDS)
    for number in range(math.ceil(heads / CHUNK)):
        kind = kinds[number % len(kinds)]
        size = min(CHUNK, heads - number * CHUNK)
        yield kind, KINDS[kind](size, generator), random_weights(size, generator)


def real_heads(file: Path, heads: int | None) -> Iterator[Heads]:
    """Chunks of what the file holds."""
    from safetensors.torch import load_file

    held = load_file(file)
    maps, values = held["maps"][:heads].float(), held["eigenvalues"][:heads]
    for some_maps, some_values in zip(maps.split(CHUNK), values.split(CHUNK), strict=True):
        yield "real", some_maps, some_values


def gpu_eigenvalues(maps_GNN: Tensor, eigenvalues_GK: Tensor) -> Tensor:
    """The whole of it on the GPU by its own routine: largest |1 + μλ| over all pairs but the mean's."""
    tokens = torch.linalg.eigvals(maps_GNN.double())
    drop = (tokens - 1.0).abs().argmin(dim=1, keepdim=True)
    moduli = (1.0 + tokens[:, :, None] * eigenvalues_GK[:, None, :]).abs().amax(dim=2)
    return moduli.scatter(1, drop, 0.0).amax(dim=1)


class Clock:
    """Seconds of one call: the processor's own, which other programs do not change, or with a GPU the clock's."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.now = time.perf_counter if device.type == "cuda" else time.process_time

    def __call__(self, work: Callable[[], object]) -> tuple[float, object]:
        """Seconds and result."""
        self.wait()
        start = self.now()
        result = work()
        self.wait()
        return self.now() - start, result

    def wait(self) -> None:
        """Until everything asked for is done."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()


def compare(fast: HeadDominance, dense: HeadDominance) -> dict[str, float]:
    """Counts that add up over chunks."""
    clear = dense.margin.abs() > 1e-3
    same = torch.tensor([a == b for a, b in zip(fast.verdict, dense.verdict, strict=True)])
    return {
        "heads": len(dense),
        "clear": int(clear.sum()),
        "same_where_clear": int((same & clear).sum()),
        "same": int(same.sum()),
        "sent_to_dense": fast.route.count("dense"),
        **{word: dense.verdict.count(word) for word in ("smoothing", "sharpening", "preserving", "undecided")},
        "margin_error": float((fast.margin - dense.margin).abs().sum()),
    }


def measure(chunks: Iterator[Heads], device: torch.device) -> dict[str, dict[str, float]]:
    """Sums of times and counts by kind of head."""
    clock = Clock(device)
    sums: dict[str, dict[str, float]] = {}
    for number, (kind, maps, source) in enumerate(chunks):
        maps = maps.to(device)
        row = {"eigenvalues_seconds": 0.0}
        if isinstance(source, Tensor):
            values = source.to(device)
        else:
            w_v, w_o = (weight.to(device) for weight in source)
            row["eigenvalues_seconds"], values = clock(lambda w_v=w_v, w_o=w_o: head_eigenvalues(w_v, w_o))
        if number == 0:
            head_dominance(maps[:32], values[:32])
        ways = {
            "fast": lambda maps=maps, values=values: head_dominance(maps, values, causal=False),
            "dense": lambda maps=maps, values=values: head_dominance(maps, values, causal=False, route="dense"),
        }
        if device.type == "cuda":
            ways["gpu"] = lambda maps=maps, values=values: gpu_eigenvalues(maps, values)
        found = {}
        # The order changes from chunk to chunk, so that no way always comes after the same other.
        for way in sorted(ways, reverse=bool(number % 2)):
            row[f"{way}_seconds"], found[way] = clock(ways[way])
        row |= compare(found["fast"], found["dense"])
        for group in (kind, "all"):
            total = sums.setdefault(group, dict.fromkeys(row, 0.0))
            for key, value in row.items():
                total[key] += value
    return sums


def summary(sums: dict[str, float]) -> dict[str, float]:
    """Shares and ratios of one kind of head."""
    counted = sums["eigenvalues_seconds"]
    heads = sums["heads"]
    found = {
        "heads": heads,
        "same_share": sums["same_where_clear"] / max(sums["clear"], 1.0),
        "same_share_all": sums["same"] / heads,
        "dense_share": sums["sent_to_dense"] / heads,
        "mean_margin_error": sums["margin_error"] / heads,
        "fast_ms_per_head": 1000.0 * sums["fast_seconds"] / heads,
        "dense_ms_per_head": 1000.0 * sums["dense_seconds"] / heads,
        "eigenvalues_ms_per_head": 1000.0 * counted / heads,
        "faster_maps_only": sums["dense_seconds"] / sums["fast_seconds"],
        "faster_with_eigenvalues": (sums["dense_seconds"] + counted) / (sums["fast_seconds"] + counted),
        **{f"{word}_share": sums[word] / heads for word in ("smoothing", "sharpening", "preserving", "undecided")},
    }
    if "gpu_seconds" in sums:
        found["gpu_eigvals_ms_per_head"] = 1000.0 * sums["gpu_seconds"] / heads
        found["faster_than_gpu_eigvals"] = sums["gpu_seconds"] / sums["fast_seconds"]
    return found


def model_eigenvalues(rounds: int) -> dict[str, float]:
    """Eigenvalues of all heads of 12 layers, d 768, 12 heads each: the best of some rounds."""
    w_v, w_o = random_weights(144, torch.Generator().manual_seed(0))
    clock = Clock(torch.device("cpu"))
    seconds = sorted(clock(lambda: head_eigenvalues(w_v, w_o))[0] for _ in range(rounds))
    return {"layers": 12, "heads": 144, "dim": DIM, "best_seconds": seconds[0], "median_seconds": seconds[rounds // 2]}


def show(results: dict[str, dict[str, float]]) -> None:
    """Print one line per kind of head."""
    columns = ("heads", "same_share", "dense_share", "faster_maps_only", "faster_with_eigenvalues", "fast_ms_per_head")
    print(f"{'':34}" + "".join(f"{name[:16]:>17}" for name in columns))
    for kind, row in results.items():
        print(f"{kind:34}" + "".join(f"{row[name]:>17.4g}" for name in columns))


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a chunk of every kind: to see that it runs")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--heads", type=int, default=5100)
    parser.add_argument("--maps", default="none", help="safetensors file with real maps, or none")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/dominance_cost.json"))
    arguments = parser.parse_args()
    if os.environ.get("OPENBLAS_NUM_THREADS") != "1":
        # numpy reads its number of threads once, at the start.
        words = [sys.executable, "-m", "benchmarks.dominance_cost", *sys.argv[1:]]
        os.execve(sys.executable, words, os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"})
    torch.set_num_threads(1)
    device = torch.device(arguments.device)
    heads = len(KINDS) * CHUNK if arguments.quick else arguments.heads
    random = measure(random_heads(heads), device)
    results = {"random": {kind: summary(row) for kind, row in random.items()}}
    if arguments.maps != "none":
        chunks = real_heads(Path(arguments.maps), heads if arguments.quick else None)
        real = measure(chunks, device)["all"]
        both = {key: value + real[key] for key, value in random["all"].items()}
        results["real"] = {"real": summary(real), "random and real": summary(both)}
    for part in results.values():
        show(part)
    eigenvalues = model_eigenvalues(3 if arguments.quick else 9)
    print(f"eigenvalues of 144 heads, d 768: {eigenvalues['best_seconds']:.3f} s")
    machine = {
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
    report = {"what": __doc__.splitlines()[0], "targets": TARGETS, "machine": machine, "tokens": TOKENS}
    report |= {"head_eigenvalues": eigenvalues, **results}
    write_whole(arguments.out, json.dumps(report, indent=1) + "\n")
    print(f"\nwritten to {arguments.out}")


if __name__ == "__main__":
    main()
