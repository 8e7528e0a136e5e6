"""What tokens look like in the mode of one attention eigenvalue."""

from __future__ import annotations

import torch
from torch import Tensor

# Relative to the size of attention, which is about 1: far enough from an eigenvalue for a solve to stay finite.
NUDGE = 1e-9


def token_modes(maps_GNN: Tensor, values_G: Tensor) -> Tensor:
    r"""Right eigenvectors of attention for the eigenvalue nearest to each value: what tokens look like in that mode.

    Two steps of inverse iteration in float64. In the mode v wᵀ token i is v_i w: a complex number times one
    direction.

    Args:
        maps_GNN: Attention (heads, n, n).
        values_G: μ, or an estimate of it, for each.

    Returns:
        Complex (heads, n) on the CPU, of length one.

    Example:
        >>> maps = torch.tensor([[[0.75, 0.25], [0.25, 0.75]]])
        >>> mode = token_modes(maps, torch.tensor([0.5 + 0.0j]))[0]
        >>> (mode[0] / mode[1]).real.round(decimals=4)
        tensor(-1., dtype=torch.float64)
    """
    maps = maps_GNN.detach().to("cpu", torch.complex128)
    count, n = maps.shape[:2]
    shift_G11 = (values_G.to("cpu", torch.complex128) + NUDGE)[:, None, None]
    factors, pivots, _ = torch.linalg.lu_factor_ex(maps - shift_G11 * torch.eye(n, dtype=maps.dtype))
    generator = torch.Generator().manual_seed(n)
    vectors = torch.randn(count, n, 1, generator=generator, dtype=torch.float64).to(maps.dtype)
    for _ in range(2):
        vectors = torch.linalg.lu_solve(factors, pivots, vectors)
        vectors = vectors / torch.linalg.vector_norm(vectors, dim=1, keepdim=True)
    return vectors[..., 0]


def phase_cosine(modes_GN: Tensor) -> Tensor:
    r"""Mean pairwise cosine of the tokens of a mode: mean of Re(v_i v̄_j)/(\|v_i\|\|v_j\|) over i ≠ j (heads,).

    For a real mode the tokens are collinear and every cosine is ±1; for a complex one this is the mean over the
    phases through which it turns from layer to layer.

    Example:
        >>> phase_cosine(torch.tensor([[1.0, 2.0, -3.0]]))  # (1 - 1 - 1) / 3
        tensor([-0.3333], dtype=torch.float64)
    """
    modes = modes_GN.to(torch.complex128)
    sizes = modes.abs()
    units = torch.where(sizes > 0.0, modes / sizes.clamp_min(torch.finfo(torch.float64).tiny), 0.0)
    n = modes.shape[1]
    return (units.sum(dim=1).abs().square() - units.abs().square().sum(dim=1)) / (n * (n - 1))
