"""What the spectra of weights and attention say of a layer and of each of its heads."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import torch
from torch import Tensor

from unsmooth import spectra
from unsmooth.explaining.weights import Folded
from unsmooth.spectra import AttentionSpectrum, Dominance, HeadShape

# More eigenvalues than this are not worth their cost: d³, a second at 768 on one core.
LARGEST_CLOUD = 2048
Null = Literal["dirichlet", "softmax"]
NULLS: dict[Null, str] = {"dirichlet": "random_second_eigenvalue", "softmax": "softmax_second_eigenvalue"}


@dataclass(frozen=True)
class HeadSpectra:
    """One head: its side of the token mean, the rest where attention is known, and its shape."""

    dominance: Dominance
    flip_scale: float | None
    shape: dict[str, float]
    attention: dict[str, float]


@dataclass(frozen=True)
class LayerSpectra:
    """One layer with all heads: `cloud` are eigenvalues of its update on equal tokens, minus 1."""

    dominance: Dominance
    known_rest: bool
    flip_scale: float | None
    cloud: tuple[complex, ...]
    heads: tuple[HeadSpectra, ...]


def layer_spectra(folded: Folded, maps: Sequence[Tensor]) -> LayerSpectra:
    """Spectra of one layer.

    Args:
        folded: Its weights with the norm folded in.
        maps: Attention (heads, n, n) of a few sequences, real tokens only; empty where there is none.
    """
    update = folded.update()
    values = spectra.eigenvalues(update) if len(update) <= LARGEST_CLOUD else _largest(update)
    cloud = tuple(complex(value) - 1.0 for value in values.tolist())
    found = [spectra.layer_dominance(map_HNN, folded.w_v, folded.w_o, right=folded.right) for map_HNN in maps]
    dominance = _typical(found) if found else _without_maps(cloud, folded.averaged_rest())
    # A norm after the addition scales both sides alike: no σ turns its verdict. And it takes the whole cloud to tell.
    whole = len(cloud) == len(update) and folded.right is None
    flip = _flip(torch.tensor(cloud, dtype=torch.complex128), folded) if whole else None
    return LayerSpectra(dominance, bool(found), flip, cloud, tuple(_heads(folded, maps)))


def _largest(update: Tensor) -> Tensor:
    _, feature = spectra.extreme_modulus(update, shift=0.0)
    return torch.tensor([feature], dtype=torch.complex128)


def _flip(cloud: Tensor, folded: Folded) -> float | None:
    """The σ at which the verdict turns; `cloud` is already divided by the σ at hand."""
    values = cloud * folded.scale
    # Zeros of a defective H scatter by the root of the rounding, to both sides.
    return spectra.flip_scale(values[values.abs() > 1e-6 * values.abs().max()])


def _typical(found: Sequence[Dominance]) -> Dominance:
    """The sequence in the middle, by margin."""
    return sorted(found, key=lambda one: one.margin)[len(found) // 2]


def _without_maps(cloud: Sequence[complex], rest: float) -> Dominance:
    """Dominance under attention that averages all tokens, of which only the mean survives."""
    feature = max(cloud, key=lambda value: abs(1.0 + value))
    mean = abs(1.0 + feature)
    margin = math.log(mean / rest) if mean > 0 and rest > 0 else math.nan
    return Dominance(mean, rest, margin, spectra.verdict_of(mean, rest), feature, None, None, "averaging attention")


def _heads(folded: Folded, maps: Sequence[Tensor]) -> list[HeadSpectra]:
    features_HK = spectra.head_eigenvalues(folded.w_v, folded.w_o)
    full_rank = folded.w_v.shape[2] >= folded.w_v.shape[1]  # one head as wide as the stream
    shape = spectra.head_shape(folded.w_v, folded.w_o)
    found = [spectra.head_dominance(map_HNN, features_HK, modes=True, full_rank=full_rank) for map_HNN in maps]
    attention = [spectra.attention_spectrum(map_HNN) for map_HNN in maps]
    return [
        HeadSpectra(
            _typical([one[head] for one in found]) if found else _without_maps_head(features_HK[head], full_rank),
            _flip(features_HK[head], folded) if folded.right is None else None,
            _shape(shape, head),
            _attention(attention, maps, head),
        )
        for head in range(len(features_HK))
    ]


def _without_maps_head(features_K: Tensor, full_rank: bool) -> Dominance:
    """A head has λ = 0 too, for d_h < d: neither side shrinks below 1."""
    return _without_maps((*(() if full_rank else (0j,)), *features_K.tolist()), 1.0)


def _shape(shape: HeadShape, head: int) -> dict[str, float]:
    return {name: float(getattr(shape, name)[head]) for name in ("asymmetry", "condition", "range_low", "range_high")}


def _attention(found: Sequence[AttentionSpectrum], maps: Sequence[Tensor], head: int) -> dict[str, float]:
    if not found:
        return {}
    names = ("second_eigenvalue", "quotient_norm", "dobrushin", "entropy")
    mean = {name: sum(float(getattr(one, name)[head]) for one in found) / len(found) for name in names}
    for null, name in NULLS.items():
        chance = [
            _by_chance(len(map_HNN[head]), float(one.entropy[head]), not bool(map_HNN[head].triu(1).any()), null)
            for map_HNN, one in zip(maps, found, strict=True)
        ]
        mean[name] = sum(chance) / len(chance)
    return mean


def _by_chance(tokens: int, entropy: float, causal: bool, null: Null) -> float:
    """|μ₂| that one random map in twenty of this size and entropy exceeds."""
    # Attention that averages, or looks at one token each, has an entropy at the end of the range or a rounding beyond.
    return _quantile(tokens, round(min(max(entropy, 0.001), 0.999), 3), causal, null)


@lru_cache(maxsize=4096)
def _quantile(tokens: int, entropy: float, causal: bool, null: Null) -> float:
    return spectra.random_second_eigenvalue(tokens, entropy, causal, null=null, quantile=0.95)
