"""What a default scan costs over the plain forward pass on a GPU: ratios in one run.

PYTHONPATH=src python -m benchmarks.scan_cost_gpu --out benchmarks/results/scan_cost_gpu.json
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import BertConfig, BertModel

import unsmooth
from unsmooth.files import write_whole

SHAPES = {"6 layers, d 384": (6, 384, 12), "12 layers, d 768": (12, 768, 12), "24 layers, d 1024": (24, 1024, 16)}
TOKENS = (128, 512, 2048)
TOKENS_PER_BATCH, BATCHES, ROUNDS = 65_536, 24, 5


def make_model(layers: int, dim: int, heads: int) -> nn.Module:
    """A BERT of that shape with random weights in bfloat16."""
    config = BertConfig(
        hidden_size=dim,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=4 * dim,
        max_position_embeddings=max(TOKENS),
    )
    return BertModel(config).cuda().to(torch.bfloat16).eval()


def make_batches(tokens: int) -> list[dict[str, Tensor]]:
    """Random ids in which every second sequence is padded by an eighth."""
    size = TOKENS_PER_BATCH // tokens
    mask = torch.ones(size, tokens, dtype=torch.long)
    mask[1::2, -tokens // 8 :] = 0
    return [{"input_ids": torch.randint(1000, 30000, (size, tokens)), "attention_mask": mask} for _ in range(BATCHES)]


def seconds(work: object, *arguments: object) -> float:
    """Wall time until the GPU is done."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    work(*arguments)  # type: ignore[operator]
    torch.cuda.synchronize()
    return time.perf_counter() - start


def plain(model: nn.Module, batches: list[dict[str, Tensor]]) -> None:
    """The forward pass alone, from the same host batches."""
    with torch.no_grad():
        for batch in batches:
            model(**{key: value.cuda(non_blocking=True) for key, value in batch.items()})


def scan(model: nn.Module, batches: list[dict[str, Tensor]]) -> None:
    """The default scan, hashes and manifest included."""
    unsmooth.scan(model, batches, progress=False)


def measure(name: str, tokens: int) -> dict[str, object]:
    """Median ratio of a scan to the plain pass over alternating rounds, and the memory a scan adds."""
    model, batches = make_model(*SHAPES[name]), make_batches(tokens)
    peaks = {}
    for way in (plain, scan):
        way(model, batches[:2])
        torch.cuda.reset_peak_memory_stats()
        way(model, batches[:2])
        peaks[way.__name__] = torch.cuda.max_memory_allocated() / 2**20
    ratios, base = [], []
    for _ in range(ROUNDS):
        base.append(seconds(plain, model, batches))
        ratios.append(seconds(scan, model, batches) / base[-1])
    return {
        "model": name,
        "tokens": tokens,
        "sequences_per_batch": TOKENS_PER_BATCH // tokens,
        "plain_seconds": statistics.median(base),
        "scan_over_plain": statistics.median(ratios),
        "plain_mib": peaks["plain"],
        "scan_mib": peaks["scan"],
        "memory_ratio": peaks["scan"] / peaks["plain"],
    }


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/scan_cost_gpu.json"))
    arguments = parser.parse_args()
    rows = [measure(name, tokens) for name in SHAPES for tokens in TOKENS]
    for row in rows:
        print(row)
    machine = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}
    report = {"what": __doc__.splitlines()[0], "batches": BATCHES, "rounds": ROUNDS, "machine": machine, "rows": rows}
    write_whole(arguments.out, json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
