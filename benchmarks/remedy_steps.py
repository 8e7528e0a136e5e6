"""The training step that `remedy_cost` times: a small ViT that is not ours, AdamW; on a GPU one CUDA graph."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from unsmooth.monitor.cuda_graph import record

CLASSES = 100
# Seconds from which on a step is long, and how many of such are timed.
LONG, FEW = 0.5, 3
# The last sees only what was before, as a decoder does, and tells the class at its last token.
PRE_NORM, POST_NORM, CAUSAL = "pre-norm", "post-norm", "pre-norm, causal"


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


class TorchViT(nn.Module):
    """Torch's encoder over patches and a class token: the fewest parts that are not ours.

    The ViT of transformers is handed an attention mask of ones inside a CUDA graph, which slows the plain model down.
    """

    hidden: Tensor | None

    def __init__(self, size: Size, kind: str) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 192, size.patch, size.patch)
        self.token = nn.Parameter(torch.zeros(1, 1, 192))
        self.positions = nn.Parameter(torch.zeros(1, size.tokens, 192))
        norm_first = kind != POST_NORM
        layer = nn.TransformerEncoderLayer(192, 3, 768, 0.0, "gelu", batch_first=True, norm_first=norm_first)
        norm = nn.LayerNorm(192) if norm_first else None
        self.encoder = nn.TransformerEncoder(layer, size.layers, norm, enable_nested_tensor=False)
        self.head = nn.Linear(192, CLASSES)
        hidden = nn.Transformer.generate_square_subsequent_mask(size.tokens) if kind == CAUSAL else None
        self.register_buffer("hidden", hidden, persistent=False)

    def forward(self, pixels: Tensor) -> Tensor:
        """Class logits."""
        x = self.patches(pixels).flatten(2).mT
        x = torch.cat([self.token.expand(len(x), -1, -1), x], dim=1) + self.positions
        causal = self.hidden is not None
        out: Tensor = self.head(self.encoder(x, mask=self.hidden, is_causal=causal)[:, -1 if causal else 0])
        return out


def make_model(size: Size, kind: str, device: str) -> nn.Module:
    """Random weights, the same for every variant."""
    torch.manual_seed(0)
    return TorchViT(size, kind).to(device)


def as_called(model: nn.Module, how: str) -> nn.Module:
    """The model as it is written ("eager"), compiled as one ("compiled"), or block by block ("regional").

    Dynamo knows code, not models, and takes the next one for a variation of the last: it makes numbers in which they
    differ variable, and after eight of them compiles no more. So it is made to forget; Inductor keeps the kernels that
    captured graphs still call.
    """
    if how == "eager":
        return model
    torch._dynamo.reset()
    torch._dynamo.config.recompile_limit = 64  # blocks that differ, of one model
    torch._dynamo.config.fail_on_recompile_limit_hit = True  # not eager in silence
    if how == "compiled":
        whole: nn.Module = torch.compile(model)  # type: ignore[assignment]
        return whole
    blocks: Any = model.encoder.layers  # type: ignore[union-attr]
    for place, block in enumerate(blocks):
        blocks[place] = torch.compile(block)
    return model


class Step:
    """A training step over resident data; on a GPU one CUDA graph once it is `ready`.

    Under bfloat16 autocast where `half` says so, by default on a GPU.
    """

    def __init__(self, model: nn.Module, size: Size, device: str, how: str, *, half: bool | None = None) -> None:
        self.model = model.train()
        self.half = device == "cuda" if half is None else half
        self.called: Callable[[Tensor], Any] = as_called(model, how)
        self.device = device
        generator = torch.Generator().manual_seed(1)
        self.images = torch.randn(size.images, 3, 32, 32, generator=generator).to(device)
        self.labels = torch.randint(CLASSES, (size.images,), generator=generator).to(device)
        self.batch = torch.arange(size.batch, device=device)
        self.optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True, capturable=device == "cuda")
        self.graph: torch.cuda.CUDAGraph | None = None

    def work(self) -> None:
        """One step, not captured."""
        pixels, labels = self.images[self.batch], self.labels[self.batch]
        with torch.autocast(self.device, torch.bfloat16, enabled=self.half, cache_enabled=False):
            loss = nn.functional.cross_entropy(self.called(pixels).float(), labels)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 5.0, foreach=True)
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        # The next batch, on the device.
        self.batch.add_(len(self.batch)).remainder_(len(self.images))

    def ready(self, *, captured: bool = True) -> Step:
        """All that happens once has happened: compiling, and on a GPU capturing."""
        if self.device != "cuda":
            self.work()
            return self
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(4):
                self.work()
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        if captured:
            self.graph = record(self.work, torch.device(self.device))
        return self

    def seconds(self, steps: int) -> float:
        """Wall time of one step, over `steps` of them."""
        if self.device == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(steps):
            if self.graph is not None:
                self.graph.replay()
            else:
                self.work()
        if self.device == "cuda":
            torch.cuda.synchronize()
        return (time.perf_counter() - start) / steps


def ratio(step: Step, plain: Step, size: Size) -> dict[str, float]:
    """Median over rounds in which both are timed one after the other, and how far the middle half of them spreads.

    Of a step that takes long, a few say enough.
    """
    long = step.seconds(1) > LONG
    steps, count = (1, FEW) if long else (size.steps, size.rounds)
    rounds = []
    step.seconds(steps)
    for number in range(count):
        # Odd rounds begin with the other one.
        timed = [(plain, size.steps), (step, steps)]
        taken = {id(one): one.seconds(times) for one, times in (timed[::-1] if number % 2 else timed)}
        rounds.append(taken[id(step)] / taken[id(plain)])
    low, _, high = statistics.quantiles(rounds, n=4)
    found = {"over_plain": statistics.median(rounds), "low": low, "high": high}
    return found | ({"rounds": count, "steps_per_round": steps} if long else {})
