"""embedding-condensation 2.0: the full cosine matrix of every layer and text, averaged over texts, as a heat map."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.rivals.cases import Case, spread
from benchmarks.rivals.harness import Turns

ENVIRONMENT = "embedding-condensation"
PACKAGES = ("embedding-condensation", "transformers", "torch", "numpy")


def load(folder: Path) -> nn.Module:
    """The model as a user of that tool loads it."""
    from transformers import AutoModel

    return AutoModel.from_pretrained(folder).eval()


def matrices(model: nn.Module, turns: Turns) -> dict[str, Any]:
    """Its one function on prepared tokens, without the picture."""
    averaged = _measure(model, turns)
    return {"mean_cosine_with_self": averaged.mean(axis=(1, 2)).tolist()}


def _measure(model: nn.Module, steps: Turns | list[dict[str, Tensor]]) -> np.ndarray:
    from embedding_condensation import measure_embedding_condensation

    turns = iter(steps)
    found = measure_embedding_condensation(
        model,
        lambda text, **_: next(turns),
        texts=[""] * len(steps),
        repetitions=len(steps),
        plot=False,
        save_path=None,
        show_progress=False,
    )
    return found.cossim_by_layer


class Shown(nn.Module):
    """A model whose only hidden states are what it is given: the tool reads models and nothing else."""

    def __init__(self) -> None:
        super().__init__()
        self.nothing = nn.Parameter(torch.zeros(()))

    def forward(self, tokens: Tensor, output_hidden_states: bool) -> SimpleNamespace:
        """The tokens themselves."""
        return SimpleNamespace(hidden_states=(tokens,))


def answers(case: Case) -> Mapping[str, float]:
    """Mean of the averaged matrix, diagonal in as it hands it over, and how far its entries lie apart."""
    averaged = _measure(Shown(), [{"tokens": one[None]} for one in case.texts()])[0]
    return {
        "mean_cosine_with_self": float(averaged.mean()),
        "mean_cosine": float(averaged.mean()),
        "cosine_spread": spread(averaged[None]),
    }


WAYS = {"embedding-condensation": matrices}
