"""What the linear algebra here is handed, made safe: shapes, numbers that are finite, rows that sum to one.

Shape suffixes: H heads, G heads of any number of layers and sequences, N tokens, D dim, K head dim or eigenvalues.
"""

from __future__ import annotations

import torch
from torch import Tensor

from unsmooth.errors import expected

ROW_SUM_TOLERANCE = 1e-3


def check_matrix(h: Tensor, name: str = "h") -> Tensor:
    """A finite real square matrix, in float64 on the CPU where LAPACK is fastest."""
    if not isinstance(h, Tensor) or h.ndim != 2 or h.shape[0] != h.shape[1] or h.shape[0] == 0:
        raise expected(f"`{name}` as a square matrix (d, d)", _shape(h), "w_v[head] @ w_o[head]")
    if not h.is_floating_point():
        raise expected(f"`{name}` of a real floating type", h.dtype, f"{name}.float()")
    _finite(h, name)
    return h.detach().double().cpu()


def check_heads(w_v_HDK: Tensor, w_o_HKD: Tensor) -> None:
    """Value and output weights that fit together: (heads, d, d_h) and (heads, d_h, d)."""
    for name, weight in (("w_v", w_v_HDK), ("w_o", w_o_HKD)):
        if not isinstance(weight, Tensor) or weight.ndim != 3 or 0 in weight.shape:
            raise expected(f"`{name}` with three dimensions, heads first", _shape(weight), f"{name}.unsqueeze(0)")
        if not weight.is_floating_point():
            raise expected(f"`{name}` of a real floating type", weight.dtype, f"{name}.float()")
        _finite(weight, name)
    heads, d, d_h = w_v_HDK.shape
    if tuple(w_o_HKD.shape) != (heads, d_h, d):
        raise expected(f"`w_o` of shape {(heads, d_h, d)} to fit `w_v`", tuple(w_o_HKD.shape), "w_o.mT")


def check_maps(maps_GNN: Tensor, *, allow_unnormalised: bool = False) -> Tensor:
    """Square attention maps (heads, n, n) of two tokens or more whose rows sum to one; at least float32."""
    if not isinstance(maps_GNN, Tensor) or maps_GNN.ndim != 3 or maps_GNN.shape[1] != maps_GNN.shape[2]:
        raise expected(
            "attention maps of shape (heads, n, n)", _shape(maps_GNN), "self-attention; cross-attention has no spectrum"
        )
    if not maps_GNN.is_floating_point():
        raise expected("attention maps of a real floating type", maps_GNN.dtype, "maps.float()")
    if len(maps_GNN) == 0:
        raise expected("attention maps of one head or more", "none", "maps of a layer that has heads")
    if maps_GNN.shape[1] < 2:
        raise expected("attention over two tokens or more", f"{maps_GNN.shape[1]}", "a longer sequence")
    maps_GNN = maps_GNN.detach()
    if maps_GNN.dtype not in (torch.float32, torch.float64):
        maps_GNN = maps_GNN.float()
    sums_GN = maps_GNN.sum(dim=-1)
    # A row with a NaN or an infinity has no finite sum, so this pass over the maps looks for both mistakes.
    if not bool(torch.isfinite(sums_GN).all()):
        raise expected("finite attention maps", "NaN or infinite entries", "leaving padded rows out")
    off = float((sums_GN - 1.0).abs().max())
    if off > ROW_SUM_TOLERANCE and not allow_unnormalised:
        raise expected("attention rows that sum to 1", f"a row that is off by {off:.3g}", "allow_unnormalised=True")
    return maps_GNN


def check_eigenvalues(eigenvalues_GK: Tensor, heads: int) -> Tensor:
    """Finite eigenvalues, one row per head; complex128 on the CPU."""
    if not isinstance(eigenvalues_GK, Tensor) or eigenvalues_GK.ndim != 2 or eigenvalues_GK.shape[0] != heads:
        raise expected(
            f"`eigenvalues` of shape ({heads}, eigenvalues)", _shape(eigenvalues_GK), "head_eigenvalues(w_v, w_o)"
        )
    if eigenvalues_GK.shape[1] == 0:
        raise expected("one eigenvalue or more per head", "none", "head_eigenvalues(w_v, w_o)")
    _finite(eigenvalues_GK, "eigenvalues")
    return eigenvalues_GK.detach().to("cpu", torch.complex128)


def causal_heads(maps_GNN: Tensor, causal: bool | None) -> Tensor:
    """Which maps are lower triangular (heads,), on the CPU; `causal` states it, and is held to it."""
    if causal is False:
        return torch.zeros(maps_GNN.shape[0], dtype=torch.bool)
    # A first token that looks ahead settles it for almost every other map without reading all of it.
    found_G = (maps_GNN[:, 0, 1:] == 0).all(dim=-1)
    if bool(found_G.any()):
        candidates = found_G.nonzero()[:, 0]
        found_G[candidates] = (maps_GNN[candidates].triu(diagonal=1) == 0).flatten(1).all(dim=1)
    if causal and not bool(found_G.all()):
        raise expected("causal attention maps", "weights on later tokens", "causal=None")
    return found_G.cpu()


def _finite(values: Tensor, name: str) -> None:
    # A sum is finite where every entry is, in a fifth of the time; an overflowing one is looked at entry by entry.
    if not bool(torch.isfinite(values.sum())) and not bool(torch.isfinite(values).all()):
        raise expected(f"a finite `{name}`", "NaN or infinite entries", "looking at the weights it comes from")


def _shape(value: object) -> object:
    return tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
