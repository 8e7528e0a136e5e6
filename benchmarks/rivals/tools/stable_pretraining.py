"""stable-pretraining's RankMe callback: the effective rank of a matrix of embeddings."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.rivals.cases import Case
from benchmarks.rivals.harness import Turns, plain

ENVIRONMENT = "others"
PACKAGES = ("stable-pretraining", "lightning", "transformers", "torch")


def load(folder: Path) -> nn.Module:
    """The model as transformers loads it."""
    define_missing_operators()
    from transformers import AutoModel

    return AutoModel.from_pretrained(folder).eval()


class Asked:
    """The callback outside of a Lightning run: the queue it reads and the module it logs to are these."""

    def __init__(self) -> None:
        from stable_pretraining.callbacks.rankme import RankMe

        self.callback = RankMe("rank", "tokens", queue_length=1, target_shape=1, verbose=False)
        self.found: list[float] = []

    def log(self, name: str, value: float) -> None:
        """What the callback calls on the module."""
        self.found.append(value)

    def __call__(self, tokens_ND: Tensor) -> float:
        """RankMe of one matrix, by the callback's own code."""
        # Its queue keeps float32, whatever comes.
        self.callback._target_queue = SimpleNamespace(data=tokens_ND.float())
        self.callback.on_validation_batch_end(SimpleNamespace(global_rank=0), self, {}, {}, 0)
        return self.found[-1]


@functools.cache
def define_missing_operators() -> torch.library.Library:
    """The torchvision of PyPI is built for CUDA; beside a CPU torch two operators must be named first.

    They are there for as long as the library that is returned.
    """
    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return library


def hooks(model: nn.Module, turns: Turns) -> dict[str, Any]:
    """A hook on every block that hands each text's tokens to the callback."""
    ask = _quietly_asked()

    def hook(module: nn.Module, args: object, output: Tensor | tuple[Tensor, ...]) -> None:
        for one in output if isinstance(output, Tensor) else output[0]:
            ask(one)

    handles = [block.register_forward_hook(hook) for block in model.encoder.layer]
    try:
        for step in turns:
            plain(model, [step])
    finally:
        for handle in handles:
            handle.remove()
    layers = len(handles)
    return {"effective_rank": [sum(ask.found[layer::layers]) / len(turns) for layer in range(layers)]}


def answers(case: Case) -> Mapping[str, float]:
    """Mean over texts."""
    ask = _quietly_asked()
    return {"effective_rank": sum(map(ask, case.texts())) / len(case.texts())}


def _quietly_asked() -> Asked:
    define_missing_operators()
    from loguru import logger

    asked = Asked()
    logger.disable("stable_pretraining")
    return asked


WAYS = {"stable-pretraining RankMe": hooks}
