"""Sharpened ViT-Ti with H from a Gram matrix, from an orthogonal basis, and from the general basis of P1.

As `steering`, for 30 epochs. The first two have a symmetric H, whose numerical range is its interval of eigenvalues;
the general basis has not: so each layer's H is looked at after training. All start as near to the drawn weights as they
can; orthogonal and general ones at the same H.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import nn

from unsmooth.evidence.bench import Bench
from unsmooth.evidence.studies.images import cut
from unsmooth.evidence.studies.steering import FULL
from unsmooth.evidence.study import Study, study
from unsmooth.models import find_anatomy, value_projection
from unsmooth.models.value_projection import ValueProjection
from unsmooth.spectra import asymmetry, eigenvalues
from unsmooth.training import Config

VARIANTS: dict[str, tuple[str, ...]] = {
    "plain": (),
    "gram": ("sharpen(basis=gram, eigenvalues=rescale)",),
    "orthogonal": ("sharpen(basis=orthogonal)",),
    "general": ("sharpen(basis=general)",),
}
LARGEST_CONDITION = 1e12
"""What a larger condition number is written down as: JSON has no infinity."""


@study
class Bases(Study):
    """Three bases of sharpening, and the plain model."""

    name: ClassVar[str] = "bases"
    about: ClassVar[str] = "ViT-Ti on CIFAR-100, patch 4, 30 epochs: sharpen with a Gram, orthogonal and general basis"

    def configs(self, bench: Bench) -> dict[str, Config]:
        """The four."""
        base = cut("vit_cifar100", bench, {**FULL, "epochs": 30})
        if bench.scale == "tiny":
            base = replace(base, epochs=1)
        return {variant: replace(base, remedies=remedies) for variant, remedies in VARIANTS.items()}

    def look(self, model: nn.Module, config: Config, device: torch.device) -> dict[str, Any]:
        """The shape of every layer's H."""
        blocks = range(len(find_anatomy(model).blocks))
        return {"layers": [shape_of(value_projection(model, block)) for block in blocks]}


def shape_of(weights: ValueProjection) -> dict[str, float]:
    r"""What eigenvalues alone do not say about a layer's summed H = V W_O, V being the value weights of all heads.

    Returns:
        `asymmetry` ‖H − Hᵀ‖_F/(2‖H‖_F); `condition` of V; `lowest` and `highest` real part, and `imaginary`, the
        largest imaginary part, of the eigenvalues of H; `symmetric`, the largest eigenvalue of (H + Hᵀ)/2; `norm`, the
        largest singular value of H.
    """
    v_DM = weights.w_v.transpose(0, 1).flatten(1).double().cpu()
    h_DD = v_DM @ weights.w_o.flatten(0, 1).double().cpu()
    sizes, values = torch.linalg.svdvals(v_DM), eigenvalues(h_DD)
    condition = float(sizes[0] / sizes[-1].clamp(min=float(sizes[0]) / LARGEST_CONDITION))
    return {
        "asymmetry": asymmetry(h_DD),
        "condition": condition,
        "lowest": float(values.real.min()),
        "highest": float(values.real.max()),
        "imaginary": float(values.imag.abs().max()),
        "symmetric": float(torch.linalg.eigvalsh((h_DD + h_DD.mT) / 2)[-1]),
        "norm": float(torch.linalg.matrix_norm(h_DD, 2)),
    }
