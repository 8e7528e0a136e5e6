"""What is measured while training: how alike tokens are at every layer, and spectra of value times output weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from unsmooth.models import find_anatomy, value_projection
from unsmooth.scanning import Scan, scan
from unsmooth.scanning.undisturbed import any_kernel
from unsmooth.spectra import asymmetry, head_eigenvalues
from unsmooth.training.config import Config
from unsmooth.training.task import Task

QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)


def measure_tokens(model: nn.Module, task: Task, config: Config, name: str) -> Scan:
    """A scan of the model as it is, on test data that stays the same over the run."""
    with any_kernel():
        return scan(
            model,
            task.probe(config.measuring.sequences),
            metrics=list(config.measuring.metrics) or None,
            progress=False,
            name=name,
            seed=config.seed,
        )


def measure_spectra(model: nn.Module) -> list[dict[str, Any]]:
    """Each layer's H = Σ_h W_V^h W_O^h: its asymmetry, and where the eigenvalues of the heads lie.

    Asymmetry is ‖H − Hᵀ‖_F / (2‖H‖_F) of the sum, and norm is its ‖H‖₂, which eigenvalues bound only where H is
    symmetric; the eigenvalues are those of the single heads, d_h each, and
    `quantiles` those of their real parts at `QUANTILES`. P1 (arXiv 2401.04301) looks at both over training.
    """
    found = []
    for block in range(len(find_anatomy(model).blocks)):
        weights = value_projection(model, block)
        h = torch.einsum("hdk,hke->de", weights.w_v.double(), weights.w_o.double())
        values = head_eigenvalues(weights.w_v, weights.w_o).flatten()
        real = values.real.sort().values
        at = (torch.tensor(QUANTILES, dtype=torch.float64) * (len(real) - 1)).round().long()
        found.append(
            {
                "layer": block + 1,
                "asymmetry": asymmetry(h),
                "negative_share": float((real < 0).double().mean()),
                "spectral_radius": float(values.abs().max()),
                "norm": float(torch.linalg.matrix_norm(h, ord=2)),
                "quantiles": real[at].tolist(),
            }
        )
    return found
