"""Growth over the real stack of blocks: do changes of the token mean outgrow differences between tokens?

With J_l the Jacobian of layer l at the real activations, products of ΠJ_lΠ and of (I − Π)J_l(I − Π) are followed by
random probes, renormalised at every layer; mean log growth per layer is the Lyapunov exponent of each side. It needs
neither fixed attention nor fixed weights, which P1 (arXiv 2401.04301) assumes.
"""

from __future__ import annotations

import torch

from unsmooth.explaining.jacobian import BlockMap, Projection, Split
from unsmooth.explaining.observe import BatchView
from unsmooth.explaining.result import Growth


def stack_growth(view: BatchView, probes: int = 2, seed: int = 0) -> Growth:
    """Mean log growth per layer of both sides over all layers of one batch."""
    split = Split(view.real_BN)
    blocks = [BlockMap(layer, split) for layer in view.layers]
    exponents = {}
    for side, part in (("mean", split.mean_part), ("rest", split.rest_part)):
        logs = [_log_growth(blocks, split, part, seed + probe) for probe in range(probes)]
        exponents[side] = sum(logs) / probes / len(blocks)
    return Growth(exponents["mean"], exponents["rest"], len(blocks))


def _log_growth(blocks: list[BlockMap], split: Split, part: Projection, seed: int) -> float:
    """Log growth of one probe through all layers, mean over sequences of two tokens or more."""
    point = blocks[0].layer.sites["input"]
    generator = torch.Generator().manual_seed(seed)
    vector = part(torch.randn(point.shape, generator=generator, dtype=point.dtype).to(point.device))
    long_B = split.real_BN.sum(dim=1) >= 2
    total_B = torch.zeros(len(point), dtype=torch.float64, device=point.device)
    for block in blocks:
        length_B = split.energy(vector).sqrt()
        vector = vector / length_B.clamp_min(1e-300).to(vector.dtype)[:, None, None]
        vector = part(block.push(block.layer.sites["input"], vector)[1])
        total_B += split.energy(vector).sqrt().log()
    return float(total_B[long_B].mean())
