"""Which tiles the kernels of some remedies run best in, on a GPU.

    python -m benchmarks.kernel_tiles            # -> benchmarks/results/kernel_tiles.json

The shapes are those of `remedy_cost`: 65 tokens, 3 heads of 64, batch 96. Each tiling is timed as one CUDA graph,
forward and backward, beside torch's own fused attention of such tensors; all are timed in turn, the median counts. A
tiling is rows, others at a time and warps; or, where a program has a whole sequence, channels at a time, warps and
loads under way at once.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - as everywhere

from unsmooth.files import write_whole
from unsmooth.monitor.cuda_graph import record
from unsmooth.remedies import likeness_kernels, mixed_heads_kernels
from unsmooth.remedies.likeness import has_kernels, mean_by_likeness
from unsmooth.remedies.likeness_kernels import Sizes
from unsmooth.remedies.mixed_heads import mixed_by_kernels
from unsmooth.remedies.mixing import TorchMix
from unsmooth.remedies.token_kernels import Tiles

RESULTS = Path(__file__).parent / "results" / "kernel_tiles.json"
BATCH, HEADS, WIDTH = 96, 3, 64
# In a graph, so that what is timed is kernels.
CALLS, ROUNDS = 20, 15
Made = tuple[Callable[[], Tensor], list[Tensor]]


@dataclass(frozen=True)
class Subject:
    """Kernels that run in tiles.

    Args:
        kernels: From a number of tokens to a call of them, and what that has gradients of.
        plain: The same of torch's own attention of that size.
        tiled: Has them run in other tiles for a while.
        tilings: What to try.
    """

    kernels: Callable[[int], Made]
    plain: Callable[[int], Made]
    tiled: Callable[[Any], Any]
    tilings: Sequence[Tiles | Sizes]


def queries(tokens: int, heads: int, width: int) -> list[Tensor]:
    """And keys and values, as a layer's one matrix product leaves them."""
    made = torch.randn(BATCH, tokens, 3, heads, width, device="cuda", dtype=torch.bfloat16)
    return [one.requires_grad_() for one in made.permute(2, 0, 3, 1, 4).unbind()]


def mixed(tokens: int, parts: int) -> Made:
    """Differential attention in two parts, talking heads in one."""
    q, k, v = queries(tokens, HEADS, WIDTH)
    after = torch.randn((1, 1, parts) if parts > 1 else (1, HEADS, HEADS), device="cuda").requires_grad_()
    before = None if parts > 1 else torch.randn(HEADS, HEADS, device="cuda").requires_grad_()
    mix = TorchMix(q, k, v, None, 0.0, False)
    tensors = [q, k, v, after] if before is None else [q, k, v, after, before]
    return lambda: mixed_by_kernels(mix, after, before=before, parts=parts), tensors


def alike(tokens: int) -> Made:
    """ContraNorm's mean of a stream in float32."""
    x = torch.randn(BATCH, tokens, HEADS * WIDTH, device="cuda").requires_grad_()
    with torch.autocast("cuda", torch.bfloat16):
        assert has_kernels(x)

    def run() -> Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            return mean_by_likeness(x, 1.0)

    return run, [x]


def attention(tokens: int, heads: int) -> Made:
    """Torch's."""
    q, k, v = queries(tokens, heads, HEADS * WIDTH // heads)
    return lambda: F.scaled_dot_product_attention(q, k, v), [q, k, v]


@contextmanager
def mixed_in(tiling: Tiles, heads: int) -> Iterator[None]:
    """Of `mixed_heads`."""
    before = dict(mixed_heads_kernels.TILES)
    mixed_heads_kernels.TILES[heads] = tiling
    try:
        yield
    finally:
        mixed_heads_kernels.TILES = before


@contextmanager
def alike_in(sizes: Sizes) -> Iterator[None]:
    """Of `likeness`."""
    before, likeness_kernels.SIZES = likeness_kernels.SIZES, sizes
    try:
        yield
    finally:
        likeness_kernels.SIZES = before


def tiles(most: int) -> list[Tiles]:
    """With as many numbers in a tile of a map."""
    tried = itertools.starmap(Tiles, itertools.product((16, 32, 64), (16, 32, 64), (1, 2, 4, 8)))
    return [one for one in tried if one.rows * one.across <= most]


SUBJECTS = {
    "differential": Subject(
        lambda tokens: mixed(tokens, 2),
        lambda tokens: attention(tokens, HEADS),
        lambda tiling: mixed_in(tiling, 1),
        tiles(4096),
    ),
    "contranorm": Subject(
        alike,
        lambda tokens: attention(tokens, 1),
        alike_in,
        list(itertools.starmap(Sizes, itertools.product((32, 64, 128), (4, 8, 16), (1, 2, 3)))),
    ),
    "talking_heads": Subject(
        lambda tokens: mixed(tokens, 1),
        lambda tokens: attention(tokens, HEADS),
        lambda tiling: mixed_in(tiling, HEADS),
        tiles(1024),
    ),
}


def captured(made: Made) -> torch.cuda.CUDAGraph:
    """Some calls, forward and backward."""
    run, tensors = made
    along = torch.randn_like(run())

    def work() -> None:
        for _ in range(CALLS):
            torch.autograd.grad(run(), tensors, along)

    work()
    torch.cuda.synchronize()
    return record(work, torch.device("cuda"))


def microseconds(graph: torch.cuda.CUDAGraph) -> float:
    """Of one call."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    graph.replay()
    torch.cuda.synchronize()
    return 1e6 * (time.perf_counter() - start) / CALLS


def sweep(subject: Subject, tokens: int, warps: Sequence[int]) -> list[dict[str, Any]]:
    """All tilings of so many warps, the fastest first."""
    graphs: dict[Any, torch.cuda.CUDAGraph] = {"torch's attention": captured(subject.plain(tokens))}
    for tiling in (one for one in subject.tilings if one.warps in warps):
        try:
            with subject.tiled(tiling):
                graphs[tiling] = captured(subject.kernels(tokens))
        except Exception as error:  # more than this GPU's registers or shared memory hold
            print(f"{tiling}: {str(error).splitlines()[0][:100]}", flush=True)
    times: dict[Any, list[float]] = {key: [] for key in graphs}
    for _ in range(ROUNDS):
        for key, graph in graphs.items():
            times[key].append(microseconds(graph))
    rows = [{"tiles": key, "microseconds": round(statistics.median(taken), 2)} for key, taken in times.items()]
    return sorted(rows, key=lambda row: row["microseconds"])


def main() -> None:
    """Sweep, print, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", choices=list(SUBJECTS), action="append", help="may be repeated")
    parser.add_argument("--tokens", type=int, default=65)
    parser.add_argument("--warps", type=int, nargs="+", default=[1, 2, 4, 8, 16])
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    found = []
    for name in given.only or SUBJECTS:
        rows = sweep(SUBJECTS[name], given.tokens, given.warps)
        found.append({"kernels": name, "tokens": given.tokens, "rows": rows})
        for row in rows:
            print(name, row, flush=True)
    machine = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}
    report = {"what": (__doc__ or "").splitlines()[0], **machine, "sweeps": found}
    write_whole(given.out, json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
