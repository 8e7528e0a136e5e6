"""weightwatcher: spectra of weight matrices; of what unsmooth measures, the stable rank of a matrix."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from benchmarks.rivals.cases import Case

ENVIRONMENT = "others"
PACKAGES = ("weightwatcher", "torch", "numpy")


def answers(case: Case) -> Mapping[str, float]:
    """Mean stable rank of the texts' matrices, each handed over as the weight of a linear layer."""
    import weightwatcher

    matrices = case.texts()
    model = nn.Sequential(*(nn.Linear(x.shape[1], x.shape[0], bias=False, dtype=x.dtype) for x in matrices))
    with torch.no_grad():
        for layer, matrix in zip(model, matrices, strict=True):
            layer.weight.copy_(matrix)
    table = weightwatcher.WeightWatcher(model=model).analyze(min_evals=1)
    if len(table) != len(matrices):
        raise ValueError(f"{len(table)} of {len(matrices)} matrices analysed")
    return {"stable_rank": float(table["stable_rank"].mean())}


WAYS: dict[str, object] = {}
