"""What each remedy costs in a training step, over the plain model: ratios in one run.

On a GPU the whole step (gather, forward and backward in bfloat16, clipping, fused AdamW) is one captured CUDA graph,
once of the model as it is written and once of the compiled model. On a CPU the step is smaller and runs eagerly.

python -m benchmarks.remedy_cost                                      # CPU -> benchmarks/results/remedy_cost.json
PYTHONPATH=src python -m benchmarks.remedy_cost --device cuda         # GPU -> benchmarks/results/remedy_cost_gpu.json
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import unsmooth
from unsmooth.files import write_whole

RESULTS = Path(__file__).parent / "results"
CLASSES = 100


@dataclass(frozen=True)
class Size:
    """A ViT-Ti (d 192, 3 heads) on 32x32 images, and how it is timed."""

    layers: int
    patch: int
    batch: int
    images: int
    rounds: int
    steps: int

    @property
    def tokens(self) -> int:
        """Patches and the class token."""
        return (32 // self.patch) ** 2 + 1


GPU = Size(layers=12, patch=4, batch=96, images=4096, rounds=9, steps=30)
CPU = Size(layers=4, patch=4, batch=16, images=64, rounds=9, steps=3)


@dataclass(frozen=True)
class Variant:
    """A remedy with options, the bar it should stay under, and whether its folded form is timed too."""

    name: str
    options: dict[str, Any] = field(default_factory=dict)
    bar: float | None = None
    fold: bool = False

    @property
    def label(self) -> str:
        """As a user would write it."""
        options = ", ".join(f"{key}={value!r}" for key, value in self.options.items())
        return f"{self.name}({options})" if options else self.name


VARIANTS = (
    Variant("sharpen", {"start": "fresh"}, 1.02, fold=True),
    Variant("smooth", {"start": "fresh"}, 1.02, fold=True),
    Variant("sharpen", {"basis": "orthogonal", "start": "fresh"}, 1.10, fold=True),
    Variant("smooth", {"basis": "orthogonal", "start": "fresh"}, 1.10, fold=True),
    Variant("sharpen", {"basis": "general", "start": "fresh"}),
    Variant("deescalate", {}, 1.03),
    Variant("deescalate", {"place": "residual"}, 1.03),
    Variant("deescalate", {"place": "norm"}, 1.03),
    Variant("deescalate", {"place": "values"}, 1.03),
    Variant("deescalate", {"learn": "layer"}, 1.03),
    Variant("deescalate", {"learn": "channel"}, 1.03),
    Variant("attnscale", {}, 1.10),
    Variant("featscale", {}, 1.10),
    Variant("neutreno", {}, 1.10),
    Variant("contranorm"),
    Variant("rezero", {"norm": "keep"}, fold=True),
    Variant("rezero", {"norm": "drop"}),
    Variant("residual_scaling", {}, fold=True),
    Variant("gfsa", {}, 1.50),
    Variant("centred", {}, 1.15),
    Variant("shaped", {}, 1.15),
    Variant("value_skipinit", {}, 1.15),
    Variant("value_residual", {}, 1.15),
    Variant("laplacian", {}, 1.15),
    Variant("talking_heads", {}, 1.15),
    Variant("differential", {}, 1.15),
    Variant("pairnorm", {}, 1.15),
    Variant("softdecay"),
    Variant("registers", {}, 1.15),
    Variant("skipinit", {"norm": "keep"}),
    Variant("layerscale"),
    Variant("layernorm_scaling"),
    Variant("peri_norm"),
    Variant("dlcl"),
    Variant("sigma_reparam"),
    Variant("norm_signs"),
    Variant("mimetic"),
    Variant("norm_place", {"to": "post"}),
)
# These are for post-norm stacks alone.
POST_NORM = (Variant("deepnorm", {}, fold=True), Variant("b2t"), Variant("admin"), Variant("deescalate", {}, 1.03))
# Made for decoders, and this is none.
LEFT_OUT = ("spa",)


class TorchViT(nn.Module):
    """Torch's encoder over patches and a class token: the fewest parts that are not ours.

    The ViT of transformers is handed an attention mask of ones inside a CUDA graph, which slows the plain model down.
    """

    def __init__(self, size: Size, norm_first: bool) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 192, size.patch, size.patch)
        self.token = nn.Parameter(torch.zeros(1, 1, 192))
        self.positions = nn.Parameter(torch.zeros(1, size.tokens, 192))
        layer = nn.TransformerEncoderLayer(192, 3, 768, 0.0, "gelu", batch_first=True, norm_first=norm_first)
        norm = nn.LayerNorm(192) if norm_first else None
        self.encoder = nn.TransformerEncoder(layer, size.layers, norm, enable_nested_tensor=False)
        self.head = nn.Linear(192, CLASSES)

    def forward(self, pixels: Tensor) -> Tensor:
        """Class logits."""
        x = self.patches(pixels).flatten(2).mT
        x = torch.cat([self.token.expand(len(x), -1, -1), x], dim=1) + self.positions
        out: Tensor = self.head(self.encoder(x)[:, 0])
        return out


def make_model(size: Size, norm: str, device: str) -> nn.Module:
    """Random weights, the same for every variant."""
    torch.manual_seed(0)
    return TorchViT(size, norm == "pre-norm").to(device)


class Step:
    """A training step over resident data; on a GPU one CUDA graph."""

    def __init__(self, model: nn.Module, size: Size, device: str, compiled: bool) -> None:
        self.model = model.train()
        self.called: Callable[[Tensor], Any] = torch.compile(model) if compiled else model
        self.device = device
        generator = torch.Generator().manual_seed(1)
        self.images = torch.randn(size.images, 3, 32, 32, generator=generator).to(device)
        self.labels = torch.randint(CLASSES, (size.images,), generator=generator).to(device)
        self.batch = torch.arange(size.batch, device=device)
        cuda = device == "cuda"
        self.optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True, capturable=cuda)
        self.graph: torch.cuda.CUDAGraph | None = None
        if cuda:
            self._capture()
        else:
            self._work()

    def _work(self) -> None:
        pixels, labels = self.images[self.batch], self.labels[self.batch]
        with torch.autocast(self.device, torch.bfloat16, enabled=self.device == "cuda", cache_enabled=False):
            loss = nn.functional.cross_entropy(self.called(pixels).float(), labels)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 5.0, foreach=True)
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        # The next batch, on the device.
        self.batch.add_(len(self.batch)).remainder_(len(self.images))

    def _capture(self) -> None:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(4):
                self._work()
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self._work()

    def seconds(self, steps: int) -> float:
        """Wall time of one step, over `steps` of them."""
        if self.graph is not None:
            torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(steps):
            if self.graph is not None:
                self.graph.replay()
            else:
                self._work()
        if self.graph is not None:
            torch.cuda.synchronize()
        return (time.perf_counter() - start) / steps


def ratio(step: Step, plain: Step, size: Size) -> dict[str, float]:
    """Median over rounds in which both are timed one after the other, and how far the middle half of them spreads."""
    rounds = []
    step.seconds(size.steps)
    for number in range(size.rounds):
        pair = (step, plain) if number % 2 else (plain, step)
        taken = {id(one): one.seconds(size.steps) for one in pair}
        rounds.append(taken[id(step)] / taken[id(plain)])
    low, _, high = statistics.quantiles(rounds, n=4)
    return {"over_plain": statistics.median(rounds), "low": low, "high": high}


def measure(variant: Variant, plain: Step, size: Size, norm: str, compiled: bool) -> list[dict[str, Any]]:
    """A row for the remedy and, where it folds, one for its folded form."""
    rows = []
    for folded in (False, True) if variant.fold else (False,):
        row: dict[str, Any] = {
            "remedy": variant.label,
            "norm": norm,
            "folded": folded,
            "compiled": compiled,
            "bar": 1.0 if folded else variant.bar,
        }
        try:
            model = unsmooth.apply(make_model(size, norm, plain.device), variant.name, **variant.options)
            step = Step(unsmooth.fold(model) if folded else model, size, plain.device, compiled)
            row |= ratio(step, plain, size)
        except RuntimeError as error:  # what a CUDA graph cannot hold
            row["failed"] = str(error).strip().splitlines()[0][:200]
        rows.append(row)
        print(json.dumps(row), flush=True)
    return rows


def run(size: Size, device: str, compiled: bool, only: list[str] | None) -> dict[str, Any]:
    """Every variant beside the plain model, and the plain model beside itself."""
    rows: list[dict[str, Any]] = []
    plain_seconds = {}
    for norm, every in (("pre-norm", VARIANTS), ("post-norm", POST_NORM)):
        variants = [variant for variant in every if only is None or variant.label in only]
        if not variants:
            continue
        plain = Step(make_model(size, norm, device), size, device, compiled)
        again = Step(make_model(size, norm, device), size, device, compiled)
        rows.append({"remedy": "none (the noise)", "norm": norm, "compiled": compiled, **ratio(again, plain, size)})
        print(json.dumps(rows[-1]), flush=True)
        plain_seconds[norm] = plain.seconds(size.steps)
        for variant in variants:
            rows += measure(variant, plain, size, norm, compiled)
        torch._dynamo.reset()
    return {"compiled": compiled, "plain_seconds": plain_seconds, "rows": rows}


def main() -> None:
    """Run and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", action="append", help="A variant by its label; may be repeated.")
    parser.add_argument("--modes", default="eager,compiled", help="On a GPU: which of the two.")
    parser.add_argument("--patch", type=int, default=4)
    arguments = parser.parse_args()
    cuda = arguments.device == "cuda"
    if not cuda:
        torch.set_num_threads(1)
    base = GPU if cuda else CPU
    size = Size(base.layers, arguments.patch, base.batch, base.images, base.rounds, base.steps)
    modes = [mode == "compiled" for mode in arguments.modes.split(",")] if cuda else [False]
    found = {
        "what": "Step time over the plain model for each remedy, in one run.",
        "step": f"ViT-Ti (torch's encoder, d 192, {size.layers} layers), {size.tokens} tokens, batch {size.batch}, "
        + f"AdamW, clipping; {'bfloat16 autocast, one CUDA graph' if cuda else 'float32, one thread, eager'}",
        "machine": {"gpu": torch.cuda.get_device_name()} if cuda else {"cpu_threads": 1},
        "torch": torch.__version__,
        "rounds": size.rounds,
        "steps_per_round": size.steps,
        "modes": [run(size, arguments.device, compiled, arguments.only) for compiled in modes],
    }
    out = arguments.out or RESULTS / ("remedy_cost_gpu.json" if cuda else "remedy_cost.json")
    write_whole(out, json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
