"""Which tiles the kernels of `mixed_heads` run best in, on a GPU: those of differential attention and of talking heads.

    python -m benchmarks.mixed_heads_tiles            # -> benchmarks/results/mixed_heads_tiles.json

The shapes are those of `remedy_cost`: 65 tokens, 3 heads of 64, batch 96. Each tiling is timed as one CUDA graph,
forward and backward, beside torch's own fused attention of such tensors; all are timed in turn, the median counts.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - as everywhere

from unsmooth.files import write_whole
from unsmooth.monitor.recording import record
from unsmooth.remedies import mixed_heads_kernels as kernels
from unsmooth.remedies.mixed_heads import mixed_by_kernels
from unsmooth.remedies.mixing import TorchMix

RESULTS = Path(__file__).parent / "results" / "mixed_heads_tiles.json"
BATCH, HEADS, WIDTH = 96, 3, 64
# In a graph, so that what is timed is kernels.
CALLS, ROUNDS = 20, 15


def attention(tokens: int, parts: int) -> tuple[Callable[[], Tensor], list[Tensor]]:
    """One mixed attention, and what it has gradients of."""
    shape = (BATCH, tokens, HEADS, WIDTH)
    q, k, v = (torch.randn(shape, device="cuda", dtype=torch.bfloat16).transpose(1, 2).requires_grad_() for _ in "qkv")
    after = torch.randn((1, 1, parts) if parts > 1 else (1, HEADS, HEADS), device="cuda").requires_grad_()
    before = None if parts > 1 else torch.randn(HEADS, HEADS, device="cuda").requires_grad_()
    mix = TorchMix(q, k, v, None, 0.0, False)
    tensors = [q, k, v, after] if before is None else [q, k, v, after, before]
    return lambda: mixed_by_kernels(mix, after, before=before, parts=parts), tensors


def plain(tokens: int) -> tuple[Callable[[], Tensor], list[Tensor]]:
    """Torch's."""
    shape = (BATCH, tokens, HEADS, WIDTH)
    q, k, v = (torch.randn(shape, device="cuda", dtype=torch.bfloat16).transpose(1, 2).requires_grad_() for _ in "qkv")
    return lambda: F.scaled_dot_product_attention(q, k, v), [q, k, v]


def captured(made: tuple[Callable[[], Tensor], list[Tensor]]) -> torch.cuda.CUDAGraph:
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


def sweep(tokens: int, parts: int) -> list[dict[str, Any]]:
    """All tilings, the fastest first."""
    heads = 1 if parts > 1 else HEADS
    graphs: dict[Any, torch.cuda.CUDAGraph] = {"torch's fused attention": captured(plain(tokens))}
    for tiles in itertools.starmap(kernels.Tiles, itertools.product((16, 32, 64), (16, 32, 64), (2, 4, 8))):
        if tiles.rows * tiles.across * heads > 64 * 64:
            continue
        before, kernels.TILES[heads] = kernels.TILES.get(heads, kernels.MANY), tiles
        try:
            graphs[tiles] = captured(attention(tokens, parts))
        except Exception as error:  # more than this GPU's registers or shared memory hold
            print(f"{tiles}: {str(error).splitlines()[0][:100]}")
        finally:
            kernels.TILES[heads] = before
    times: dict[Any, list[float]] = {key: [] for key in graphs}
    for _ in range(ROUNDS):
        for key, graph in graphs.items():
            times[key].append(microseconds(graph))
    rows = [{"tiles": key, "microseconds": statistics.median(taken)} for key, taken in times.items()]
    return sorted(rows, key=lambda row: row["microseconds"])


def main() -> None:
    """Sweep, print, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tokens", type=int, nargs="*", default=[65])
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    found = []
    for tokens, (name, parts) in itertools.product(given.tokens, {"differential": 2, "talking heads": 1}.items()):
        rows = sweep(tokens, parts)
        found.append({"attention": name, "tokens": tokens, "rows": rows})
        for row in rows:
            print(name, tokens, row, flush=True)
    machine = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}
    report = {"what": (__doc__ or "").splitlines()[0], **machine, "sweeps": found}
    write_whole(given.out, json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
