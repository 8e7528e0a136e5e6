"""torchmetrics' `pairwise_cosine_similarity`, one text and layer at a time: it takes no batch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from benchmarks.rivals.cases import Case
from benchmarks.rivals.harness import Turns, plain

ENVIRONMENT = ""
PACKAGES = ("torchmetrics", "transformers", "torch")


def load(folder: Path) -> nn.Module:
    """The model as transformers loads it."""
    from transformers import AutoModel

    return AutoModel.from_pretrained(folder).eval()


def hooks(model: nn.Module, turns: Turns) -> dict[str, Any]:
    """A hook on every block, as its users write them."""
    from torchmetrics.functional.pairwise import pairwise_cosine_similarity

    means: list[float] = []

    def hook(module: nn.Module, args: object, output: Tensor | tuple[Tensor, ...]) -> None:
        tokens_BND = output if isinstance(output, Tensor) else output[0]
        means.extend(float(pairwise_cosine_similarity(one, reduction="mean").mean()) for one in tokens_BND)

    handles = [block.register_forward_hook(hook) for block in model.encoder.layer]
    try:
        for step in turns:
            plain(model, [step])
    finally:
        for handle in handles:
            handle.remove()
    layers = len(handles)
    return {"mean_cosine": [sum(means[layer::layers]) / len(turns) for layer in range(layers)]}


def answers(case: Case) -> Mapping[str, float]:
    """Its own mean, and its mean with the diagonal kept."""
    from torchmetrics.functional.pairwise import pairwise_cosine_similarity

    def mean(**options: bool) -> float:
        texts = case.texts()
        return sum(float(pairwise_cosine_similarity(x, reduction="mean", **options).mean()) for x in texts) / len(texts)

    return {"mean_cosine": mean(), "mean_cosine_with_self": mean(zero_diagonal=False)}


WAYS = {"torchmetrics": hooks}
