"""What attention alone does to differences between tokens: eigenvalues, norms, contraction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from unsmooth.errors import expected
from unsmooth.functional import attention_entropy
from unsmooth.spectra._checks import causal_heads, check_maps
from unsmooth.spectra._ritz import ritz_token_eigenvalues
from unsmooth.spectra._token_side import (
    causal_token_eigenvalues,
    dense_token_eigenvalues,
    in_chunks,
)


@dataclass(frozen=True)
class AttentionSpectrum:
    """How each map contracts what differs between tokens; float64 tensors (heads,) on the CPU.

    Attributes:
        second_eigenvalue: Largest |μ| besides the token mean's: contraction per layer in the long run.
        least_real: Smallest Re μ besides the token mean's.
        quotient_norm: ‖(I − Π) A (I − Π)‖₂: the most that one step can do; above 1 it may grow differences first.
        dobrushin: ½ max_ij ‖A_i − A_j‖₁: bounds |μ₂|, and 1 where two tokens look at nothing in common.
        entropy: Mean row entropy over its maximum, as in `unsmooth.functional.attention_entropy`, per head.
    """

    second_eigenvalue: Tensor
    least_real: Tensor
    quotient_norm: Tensor
    dobrushin: Tensor
    entropy: Tensor


def attention_spectrum(
    maps_HNN: Tensor, causal: bool | None = None, route: Literal["auto", "dense"] = "dense"
) -> AttentionSpectrum:
    r"""Spectrum and contraction of attention maps whose rows sum to one.

    P2 (arXiv 2312.06182) reads the loss of token diversity off \|λ₂\| of random Markov matrices. A causal map has its
    eigenvalues on the diagonal, and its second is the second largest entry there, exactly; no general eigenvalue
    routine sees it. The Dobrushin coefficient compares all rows with all others: O(n³) per head.

    Args:
        maps_HNN: Attention (heads, n, n), queries × keys, two tokens or more.
        causal: Whether the maps are lower triangular; None looks at each.
        route: "dense" for all eigenvalues in float64; "auto" for estimates from a few products where these have
            settled to 1 %, and all eigenvalues elsewhere.

    Returns:
        One value of each kind per head.

    Example:
        >>> found = attention_spectrum(torch.tensor([[[0.75, 0.25], [0.25, 0.75]], [[1.0, 0.0], [0.5, 0.5]]]))
        >>> found.second_eigenvalue
        tensor([0.5000, 0.5000], dtype=torch.float64)
        >>> found.quotient_norm  # one direction is left of two: the differences are all in it
        tensor([0.5000, 0.5000], dtype=torch.float64)
        >>> found.dobrushin
        tensor([0.5000, 0.5000], dtype=torch.float64)
    """
    if route not in ("auto", "dense"):
        raise expected("route 'auto' or 'dense'", repr(route), "'dense'")
    maps_HNN = check_maps(maps_HNN)
    causal_H = causal_heads(maps_HNN, causal)
    parts = [
        _chunk(maps_HNN[heads.to(maps_HNN.device)], causal_H[heads], route)
        for heads in in_chunks(torch.arange(len(maps_HNN)))
    ]
    return AttentionSpectrum(*(torch.cat(columns) for columns in zip(*parts, strict=True)))


def _chunk(maps_HNN: Tensor, causal_H: Tensor, route: str) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    modulus_H = torch.zeros(len(maps_HNN), dtype=torch.float64)
    least_H = modulus_H.clone()
    if bool(causal_H.any()):
        modulus_H[causal_H], least_H[causal_H] = _outermost(causal_token_eigenvalues(maps_HNN[causal_H]))
    others = (~causal_H).nonzero()[:, 0]
    if route == "auto" and len(others):
        values, settled = ritz_token_eigenvalues(maps_HNN[others])
        modulus_H[others], least_H[others] = _outermost(values)
        others = others[~settled]
    if len(others):
        modulus_H[others], least_H[others] = _outermost(dense_token_eigenvalues(maps_HNN[others], normalised=True))
    return modulus_H, least_H, _quotient_norm(maps_HNN), _dobrushin(maps_HNN), _entropy(maps_HNN, causal_H)


def _outermost(values_HM: Tensor) -> tuple[Tensor, Tensor]:
    return values_HM.abs().amax(dim=1), values_HM.real.amin(dim=1)


def _quotient_norm(maps_HNN: Tensor) -> Tensor:
    maps = maps_HNN.double()
    centred = maps - maps.mean(dim=1, keepdim=True)
    centred = centred - centred.mean(dim=2, keepdim=True)
    largest: Tensor = torch.linalg.eigvalsh(centred @ centred.mT)[:, -1]
    return largest.clamp_min(0.0).sqrt().cpu()


def _dobrushin(maps_HNN: Tensor) -> Tensor:
    rows = maps_HNN.float() if maps_HNN.dtype != torch.float64 else maps_HNN
    return torch.stack([torch.cdist(one, one, p=1.0).max() / 2.0 for one in rows]).to("cpu", torch.float64)


def _entropy(maps_HNN: Tensor, causal_H: Tensor) -> Tensor:
    found = torch.zeros(len(maps_HNN), dtype=torch.float64)
    for causal in (False, True):
        heads = (causal_H == causal).nonzero()[:, 0]
        if len(heads):
            one_per_sequence = maps_HNN[heads.to(maps_HNN.device)].unsqueeze(1)
            found[heads] = attention_entropy(one_per_sequence, causal=causal).to("cpu", torch.float64)
    return found
