"""A layer's value weights with its norm folded in at the scale of its stream."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from unsmooth import spectra
from unsmooth.errors import UnsmoothError
from unsmooth.models import Anatomy, ValueProjection
from unsmooth.models.value_projection import values_of_block


@dataclass(frozen=True)
class Weights:
    """What could be read of one block; `problem` says why nothing could."""

    path: str
    values: ValueProjection | None
    problem: str | None = None


@dataclass(frozen=True)
class Folded:
    """X ← (X + Σ_h A_h X w_v[h] w_o[h]) R: the layer as the theory has it.

    Attributes:
        w_v: (heads, d, d_h), a norm before the branch folded in at `scale`.
        w_o: (heads, d_h, d), a gain on the branch, and a norm on it at `branch_scale`, folded in.
        right: R (d, d), a norm after the addition at `scale`; None where there is none.
        scale: σ, what the layer's norm divides a token by.
        ignored: What is left out, in words.
    """

    w_v: Tensor
    w_o: Tensor
    right: Tensor | None
    scale: float
    ignored: tuple[str, ...]

    def update(self) -> Tensor:
        """What the layer does to equal tokens, (I + ΣH_h) R (d, d), float64."""
        h = spectra.summed_product(self.w_v, self.w_o).double()
        whole = h + torch.eye(len(h), dtype=h.dtype, device=h.device)
        return whole if self.right is None else whole @ self.right.to(whole)

    def averaged_rest(self) -> float:
        """Growth of the rest under attention that averages all tokens: what the norm after the addition leaves."""
        if self.right is None:
            return 1.0
        return spectra.extreme_modulus(self.right.double(), shift=0.0)[0]


def read_weights(anatomy: Anatomy) -> list[Weights]:
    """The value weights of every block, in the order of the modules."""
    found = []
    for index, path in enumerate(anatomy.blocks):
        try:
            values = values_of_block(anatomy, index)
            found.append(Weights(path, values, _not_finite(values)))
        except UnsmoothError as error:
            found.append(Weights(path, None, str(error)))
    return found


def _not_finite(values: ValueProjection) -> str | None:
    broken_H = ~(values.w_v.isfinite().all(dim=(1, 2)) & values.w_o.isfinite().all(dim=(1, 2)))
    if not bool(broken_H.any()):
        return None
    heads = ", ".join(map(str, broken_H.nonzero().flatten().tolist()))
    return f"NaN or Inf in the value or output weights of head {heads}"


def fold(values: ValueProjection, scale: float, branch_scale: float | None = None) -> Folded:
    """Fold the norms in: `scale` is σ of the layer's norm, `branch_scale` that of a norm on the branch's output."""
    # A LayerNorm makes H singular: in float32 its zero eigenvalue would have a sign, and a say in the verdict.
    w_v, w_o = values.w_v.double(), values.w_o.double()
    if values.gain is not None:
        w_o = w_o * values.gain
    w_o = w_o / values.keeps  # ax + f(x) is x + f(x)/a but for its size
    ignored = ["MLP", *values.unseen]
    if values.gate is not None:
        ignored.append("gate")
    if values.output_norm is not None or values.heads_norm is not None:
        if branch_scale is None:
            ignored.append("norm on the branch")
        else:
            w_o = _scaled(w_o, values, branch_scale)
    if values.drift() is not None:
        ignored.append("bias")
    centred = values.norm.kind == "layer"
    right = None
    if values.latent is not None and values.place == "post":
        ignored.append("norm of values")
    if values.norm.kind == "none":
        w_v = w_v / scale if values.latent is not None and values.place == "pre" else w_v
    else:
        if values.place == "pre":
            w_v = spectra.fold_pre_norm(w_v, values.norm.weight, centred, scale)
        else:
            right = spectra.norm_factor(w_v[0, :, 0], values.norm.weight, centred, scale)
    return Folded(w_v, w_o, right, scale, tuple(ignored))


def _scaled(w_o: Tensor, values: ValueProjection, branch_scale: float) -> Tensor:
    if values.output_norm is None:
        return w_o / branch_scale
    if values.output_norm.kind == "layer":
        w_o = w_o - w_o.mean(dim=-1, keepdim=True)
    weight = values.output_norm.weight
    return (w_o if weight is None else w_o * weight) / branch_scale


def rebuilding_error(values: ValueProjection, maps_BHNN: Tensor, sites: Mapping[str, Tensor], real_BN: Tensor) -> float:
    """Largest error of the attention branch rebuilt from weights and maps, relative to its largest entry.

    Near 0 where the weights were read rightly and nothing happens between map and values that the map does not show,
    such as gates or heads that talk to one another after the softmax. Infinite where the heads differ in number.
    """
    if maps_BHNN.shape[1] != values.heads:
        return math.inf
    wanted = sites["attention"][real_BN].to(values.w_v.dtype)
    found = values.attention_output(maps_BHNN, sites["normed"])[real_BN]
    return float((found - wanted).abs().max() / wanted.abs().max().clamp_min(1e-30))


def stream_scale(values: ValueProjection, stream_MD: Tensor) -> Tensor:
    """σ of each token (tokens,): what the norm divides it by, and a norm of its values; ones where there is none."""
    scale_M = values.norm.scale(stream_MD)
    if values.latent is None or values.place == "post":
        return scale_M
    return scale_M * values.latent.scale(values.norm.apply(stream_MD.to(values.w_v.dtype)))


def branch_scale(values: ValueProjection, maps_BHNN: Tensor, normed_BND: Tensor) -> Tensor | None:
    """σ of each token under norms on heads and on the branch's output (batch, tokens); None where there are none."""
    if values.output_norm is None and values.heads_norm is None:
        return None
    scale_BN = normed_BND.new_ones(normed_BND.shape[:2])
    if values.heads_norm is not None:
        mixed_BHNE = values.mixed(maps_BHNN, normed_BND)
        scale_BN = scale_BN * values.heads_norm.scale(mixed_BHNE.transpose(1, 2).flatten(2))
    if values.output_norm is not None:
        raw = replace(values, output_norm=None, gain=None).attention_output(maps_BHNN, normed_BND)
        scale_BN = scale_BN * values.output_norm.scale(raw)
    return scale_BN
