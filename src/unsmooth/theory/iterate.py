"""The idealised layer, applied over and over: X ← X + Σ_h A_h X H_h.

Shape suffixes: L layers (the input is layer 0), H heads, N tokens, D dimensions, K singular values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Literal, TypeAlias

import torch
from torch import Tensor

from unsmooth.errors import expected
from unsmooth.functional import Tokens, hfc_lfc, mean_cosine, token_similarity
from unsmooth.theory._checks import (
    check_fit,
    check_heads,
    checked_attention,
    checked_gain,
    checked_tokens,
    checked_weights,
)

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class Trajectory:
    """The tokens at every depth and how alike they are; index 0 is the input, index ℓ follows layer ℓ.

    Attributes:
        token_similarity: t_sim = ‖ΠX‖²/‖X‖².
        mean_cosine: Mean signed cosine over pairs.
        mean_abs_cosine: Mean |cosine| over pairs.
        hfc_lfc: ‖(I − Π)X‖/‖ΠX‖.
        second_singular: σ₂/σ₁ of the token matrix; 0 where there is no second.
        third_singular: σ₃/σ₁; 0 where there is no third.
        log_norm: log ‖X‖ of the stream itself, rescaled or not.
        states_LND: The tokens, each layer's divided by its norm if the run was normalised.
    """

    token_similarity: Tensor
    mean_cosine: Tensor
    mean_abs_cosine: Tensor
    hfc_lfc: Tensor
    second_singular: Tensor
    third_singular: Tensor
    log_norm: Tensor
    states_LND: Tensor

    @classmethod
    def of(cls, units_LND: Tensor, log_norm: Tensor, states_LND: Tensor | None = None) -> Trajectory:
        """Measure all layers at once, on tokens of norm one whatever is kept."""
        tokens = Tokens(units_LND)
        singular_LK = torch.linalg.svdvals(units_LND)
        return cls(
            token_similarity=token_similarity(tokens),
            mean_cosine=mean_cosine(tokens),
            mean_abs_cosine=mean_cosine(tokens, absolute=True),
            hfc_lfc=hfc_lfc(tokens),
            second_singular=_relative(singular_LK, 1),
            third_singular=_relative(singular_LK, 2),
            log_norm=log_norm,
            states_LND=units_LND if states_LND is None else states_LND,
        )

    @property
    def x_ND(self) -> Tensor:
        """The tokens after the last layer."""
        return self.states_LND[-1]

    @property
    def depth(self) -> int:
        """Number of layers."""
        return len(self.log_norm) - 1

    def to_frame(self) -> pandas.DataFrame:
        """One row per layer, the input being layer 0."""
        import pandas

        columns = {one.name: getattr(self, one.name).tolist() for one in fields(self) if one.name != "states_LND"}
        return pandas.DataFrame({"layer": range(self.depth + 1), **columns})


def _relative(singular_LK: Tensor, index: int) -> Tensor:
    if singular_LK.shape[1] <= index:
        return torch.zeros_like(singular_LK[:, 0])
    return singular_LK[:, index] / singular_LK[:, 0]


PerLayer: TypeAlias = Tensor | Sequence[Tensor] | Callable[[int], Tensor]
Place: TypeAlias = Literal["pre", "post"]
NormKind: TypeAlias = Literal["layer", "rms"]
Step: TypeAlias = Callable[[Tensor, int], Tensor]


def iterate(
    x_ND: Tensor,
    attention: PerLayer,
    h: PerLayer,
    *,
    depth: int,
    norm: Place | None = None,
    norm_weight: PerLayer | None = None,
    norm_kind: NormKind = "layer",
    normalise: bool = True,
) -> Trajectory:
    r"""Run `depth` idealised layers and keep how alike the tokens are after each.

    .. math:: X \leftarrow X + \sum_h A_h X H_h, \qquad H_h = W_V^h W_O^h

    with tokens as rows (P1, arXiv 2401.04301, for one head and a fixed A and H). A norm stands inside the branch,
    X + Σ A_h N(X) H_h ("pre"), or behind the addition, N(X + Σ A_h X H_h) ("post"). All in float64.

    Args:
        x_ND: Tokens (n, d) that enter, at least two.
        attention: (n, n) or (heads, n, n) with rows that sum to one; a sequence of `depth` such maps, or a function
            of the layer's index from 0, where layers differ.
        h: (d, d) or (heads, d, d), likewise.
        depth: Number of layers.
        norm: "pre", "post" or None.
        norm_weight: The norm's weight γ (d,), or one per layer; None for ones.
        norm_kind: "layer" subtracts the feature mean, "rms" does not. Neither has an epsilon; a token without any
            variance is normed to zero.
        normalise: Hand back tokens relative to ‖X‖, and without a norm rescale at every step, so that nothing
            overflows; `log_norm` keeps the growth. A pre-norm layer is never run on rescaled tokens, because there
            the scale matters.

    Returns:
        The trajectory, of depth + 1 entries.

    Example:
        >>> x = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
        >>> uniform = torch.full((2, 2), 0.5)
        >>> iterate(x, uniform, torch.eye(2), depth=1, normalise=False).x_ND  # X + mean
        tensor([[1.5000, 0.5000],
                [0.5000, 1.5000]], dtype=torch.float64)
        >>> iterate(x, uniform, torch.eye(2), depth=2).token_similarity  # (1/2)·4^ℓ / ((1/2)·4^ℓ + 1/2)
        tensor([0.5000, 0.8000, 0.9412], dtype=torch.float64)
    """
    x = checked_tokens(x_ND)
    if depth < 0:
        raise expected("a depth of 0 or more", str(depth), "depth=24")
    step = _step(x, attention, h, depth, norm, norm_weight, norm_kind)
    rescale = normalise and norm is None
    states: list[Tensor] = []
    units: list[Tensor] = []
    logs: list[float] = []
    growth = 0.0
    for layer in range(depth + 1):
        x = x if layer == 0 else step(x, layer - 1)
        size = _size(x, layer)
        logs.append(growth + size.log().item())
        units.append(x / size)
        states.append(x)
        if rescale:
            x, growth = units[-1], logs[-1]
    log_norm = torch.tensor(logs, dtype=torch.float64)
    return Trajectory.of(torch.stack(units), log_norm, None if normalise else torch.stack(states))


def _step(
    x: Tensor,
    attention: PerLayer,
    h: PerLayer,
    depth: int,
    norm: Place | None,
    norm_weight: PerLayer | None,
    norm_kind: NormKind,
) -> Step:
    """The layer as a function of the stream and the layer's index."""
    if norm not in (None, "pre", "post"):
        raise expected("norm None, 'pre' or 'post'", repr(norm), "norm='pre'")
    if norm_kind not in ("layer", "rms"):
        raise expected("norm_kind 'layer' or 'rms'", repr(norm_kind), "norm_kind='layer'")
    if norm is None and norm_weight is not None:
        raise expected("norm_weight together with a norm", "norm=None", "norm='pre'")
    map_of = _per_layer(attention, depth, "attention", checked_attention)
    h_of = _per_layer(h, depth, "h", checked_weights)
    gain_of = None if norm_weight is None else _per_layer(norm_weight, depth, "norm_weight", lambda weight: weight)

    def step(x_ND: Tensor, layer: int) -> Tensor:
        map_HNN, h_HDD = map_of(layer), h_of(layer)
        check_heads(map_HNN, h_HDD)
        check_fit(x_ND, map_HNN, h_HDD)
        gain = None if gain_of is None else checked_gain(gain_of(layer), x_ND.shape[1])
        read_ND = normed(x_ND, gain, norm_kind) if norm == "pre" else x_ND
        y_ND = x_ND + (map_HNN @ read_ND @ h_HDD).sum(dim=0)
        return normed(y_ND, gain, norm_kind) if norm == "post" else y_ND

    return step


def normed(x_ND: Tensor, gain: Tensor | None, kind: NormKind) -> Tensor:
    """LayerNorm or RMSNorm of each token, without epsilon: a token of no variance becomes zero.

    >>> normed(torch.tensor([[1.0, 3.0]]), None, "layer")
    tensor([[-1.,  1.]])
    """
    centred = x_ND - x_ND.mean(dim=-1, keepdim=True) if kind == "layer" else x_ND
    scale = centred.square().mean(dim=-1, keepdim=True).sqrt()
    unit = centred / torch.where(scale == 0, 1.0, scale)
    return unit if gain is None else unit * gain


def _per_layer(given: PerLayer, depth: int, name: str, check: Callable[[Tensor], Tensor]) -> Callable[[int], Tensor]:
    """One checked tensor per layer, whichever way it was given; a fixed one is checked once."""
    if isinstance(given, Tensor):
        fixed = check(given)
        return lambda layer: fixed
    if callable(given):
        return lambda layer: check(given(layer))
    if not isinstance(given, Sequence):
        raise expected(f"{name} as a tensor, a sequence or a function of the layer", type(given).__name__, "a tensor")
    if len(given) != depth:
        raise expected(f"{depth} entries in {name}, one per layer", str(len(given)), f"depth={len(given)}")
    return lambda layer: check(given[layer])


def _size(x_ND: Tensor, layer: int) -> Tensor:
    largest = x_ND.abs().max()
    if not largest.isfinite():
        raise expected("a stream that stays finite", f"an overflow at layer {layer}", "normalise=True or fewer layers")
    if largest == 0:
        raise expected("a stream that does not vanish", f"only zeros after layer {layer}", "weights h other than −I")
    # By the largest entry first: squares leave the range of numbers long before the stream does.
    return largest * (x_ND / largest).square().sum().sqrt()
