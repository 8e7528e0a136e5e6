"""Whether `sharpen` and `smooth` keep what they promise over 1,000 training steps.

    python -m benchmarks.sharpen_training [--steps 1000] [--out benchmarks/results/sharpen_training.json]

A decoder of three layers learns to predict the next byte of this repository's documentation, by AdamW with learning
rate 1e-3, in float32, under bfloat16 autocast, and with weights of bfloat16. Then, of what the next training pass
uses: how far V is from orthonormal columns, H from QTQᵀ, the diagonal of T from the interval, a followed inverse from
V⁻¹. And of the folded model: how far outside the interval the eigenvalues of the summed H are, and its logits from
those of the model before.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import platform
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from unsmooth import remedies
from unsmooth.files import write_whole
from unsmooth.models import value_projection

DIM, HEADS, LAYERS, TOKENS, BATCH = 96, 4, 3, 32, 8
ENDS = {"sharpen": (-1.0, 0.0), "smooth": (0.0, 1.0)}
# Eigenvalues start near the far end of the interval, so that it is reached.
SIZE = 0.98
BASES = ("schur", "general", "orthogonal", "gram")
TARGETS = {
    "off_orthonormal": 1e-5,
    "off_orthonormal_bf16": 1e-2,
    "off_triangle": 1e-5,
    "diagonal_outside": 0.0,
    "off_inverse": 1e-5,
    "outside_folded": 1e-4,
    "folded_apart": 1e-5,
}
# Weights of bfloat16 have no more than three digits.
LOOSE = {**dict.fromkeys(TARGETS, 1e-2), "off_orthonormal": 1e-5, "diagonal_outside": 0.0, "folded_apart": 2e-2}
PRECISIONS = ("float32", "bfloat16 autocast", "bfloat16 weights")


class Decoder(nn.Module):
    """Bytes in, bytes out."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(256, DIM)
        self.place = nn.Parameter(0.02 * torch.randn(TOKENS, DIM))
        layer = nn.TransformerEncoderLayer(DIM, HEADS, 2 * DIM, 0.0, batch_first=True, norm_first=True)
        self.stack = nn.TransformerEncoder(layer, LAYERS, nn.LayerNorm(DIM), enable_nested_tensor=False)
        self.head = nn.Linear(DIM, 256)
        self.mask: Tensor
        self.register_buffer("mask", torch.ones(TOKENS, TOKENS, dtype=torch.bool).triu(1))

    def forward(self, bytes_BN: Tensor) -> Tensor:
        """Logits (batch, tokens, 256)."""
        return self.head(self.stack(self.embed(bytes_BN) + self.place, mask=self.mask, is_causal=True))


def text() -> Tensor:
    """Our own documentation, as bytes."""
    root = Path(__file__).parent.parent
    files = [root / "README.md", root / "CHANGELOG.md", *sorted((root / "docs").glob("*.md"))]
    return torch.tensor(list(b"".join(file.read_bytes() for file in files if file.exists())))


def train(model: Decoder, data: Tensor, steps: int, autocast: bool) -> tuple[float, float]:
    """Loss of the first and the last ten steps."""
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(1)
    losses = []
    model.train()
    for _ in range(steps):
        starts_B1 = torch.randint(len(data) - TOKENS - 1, (BATCH, 1), generator=generator)
        chunk = data[starts_B1 + torch.arange(TOKENS + 1)]
        with torch.autocast("cpu", torch.bfloat16) if autocast else contextlib.nullcontext():
            logits = model(chunk[:, :-1])
        loss = nn.functional.cross_entropy(logits.float().flatten(0, 1), chunk[:, 1:].flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    return sum(losses[:10]) / 10, sum(losses[-10:]) / 10


def summed(model: Decoder, layer: int) -> Tensor:
    """A layer's H, in float64."""
    return value_projection(model, layer).summed().double()


def norm(matrix: Tensor) -> float:
    """The largest singular value."""
    return float(torch.linalg.matrix_norm(matrix, ord=2))


def past(values: Tensor, remedy: str) -> float:
    """How far outside the interval the worst of some numbers is."""
    low, high = ENDS[remedy]
    return max(0.0, low - float(values.min()), float(values.max()) - high)


@torch.no_grad()
def in_use(model: Decoder, layer: int, remedy: str, basis: str) -> dict[str, float]:
    """What a layer's weights are, as the next training pass uses them."""
    block = model.stack.layers[layer]
    form, h_DD = getattr(block.unsmooth, remedy).form, summed(model, layer)
    rows_MD = block.self_attn.in_proj_weight[2 * DIM :].detach().double()
    identity = torch.eye(len(rows_MD), dtype=torch.float64)
    found = {"norm": norm(h_DD)}
    if basis == "general":
        found["off_inverse"] = norm(form.inverse.double() @ rows_MD.mT - identity)
    if basis in ("schur", "orthogonal"):
        full_MD = rows_MD if form.master is None else form.master.double()
        found["off_orthonormal"] = norm(full_MD @ full_MD.mT - identity)
        half_MD = full_MD.bfloat16().double()
        found["off_orthonormal_bf16"] = norm(half_MD @ half_MD.mT - identity)
    if basis == "schur":
        triangle_MM = form.triangle().double()
        found["off_triangle"] = float((h_DD - rows_MD.mT @ triangle_MM @ rows_MD).norm() / h_DD.norm())
        found["diagonal_outside"] = past(triangle_MM.diagonal(), remedy)
        found["upper"] = float(triangle_MM.triu(1).norm())
    return found


def run(remedy: str, basis: str, precision: str, data: Tensor, steps: int) -> dict[str, Any]:
    """One model, trained and measured."""
    torch.manual_seed(0)
    model = Decoder()
    if precision == "bfloat16 weights":
        model = model.bfloat16()
    remedies.apply(model, remedy, basis=basis, start="fresh", size=SIZE)
    began = time.process_time()
    first, last = train(model, data, steps, autocast=precision == "bfloat16 autocast")
    took = time.process_time() - began
    with torch.no_grad():
        model(data[None, :TOKENS])  # a training pass brings weights up to date with the last step
    found: dict[str, Any] = {"remedy": remedy, "basis": basis, "precision": precision}
    found |= {"loss_first": round(first, 3), "loss_last": round(last, 3), "seconds": round(took, 1)}
    layers = [in_use(model, layer, remedy, basis) for layer in range(LAYERS)]
    found |= {name: max(one[name] for one in layers) for name in layers[0]}
    with torch.no_grad():
        unfolded = model.eval()(data[None, :TOKENS]).double()
        folded = remedies.fold(model)(data[None, :TOKENS]).double()
    found["folded_apart"] = float((folded - unfolded).abs().max() / unfolded.abs().max())
    values = torch.cat([torch.linalg.eigvals(summed(model, layer)) for layer in range(LAYERS)])
    # Those of a Schur form, which may be defective, cannot be computed: its diagonal has them.
    found["eigenvalues_computed_outside" if basis == "schur" else "outside_folded"] = past(values.real, remedy)
    # Within a thousandth of the far end: a spectrum that never came there would say nothing about the interval.
    found["share_at_the_end"] = float((values.real.abs() > 0.999).double().mean())
    targets = LOOSE if precision == "bfloat16 weights" else TARGETS
    return {**found, "held": all(found[name] <= target for name, target in targets.items() if name in found)}


def main() -> None:
    """Run them all and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/sharpen_training.json"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    data = text()
    machine = {"device": "cpu", "cores": os.cpu_count(), "threads": 1, "torch": torch.__version__}
    result: dict[str, Any] = {
        "what": "What sharpen and smooth keep over training (AdamW, rate 1e-3, next byte of our documentation).",
        "targets": TARGETS,
        "targets_bfloat16_weights": LOOSE,
        "machine": {**machine, "python": platform.python_version()},
        "model": {"dim": DIM, "heads": HEADS, "layers": LAYERS, "tokens": TOKENS, "batch": BATCH},
        "steps": options.steps,
        "runs": [],
    }
    for precision, remedy, basis in itertools.product(PRECISIONS, ENDS, BASES):
        result["runs"].append(run(remedy, basis, precision, data, options.steps))
        print(json.dumps(result["runs"][-1]), flush=True)
        write_whole(options.out, json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
