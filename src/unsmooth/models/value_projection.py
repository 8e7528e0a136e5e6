"""The value and output weights of any attention layer in one shape, with the norm that meets them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor


@dataclass(frozen=True)
class Norm:
    """A norm on token vectors.

    Args:
        kind: "layer" subtracts the feature mean first, "rms" does not, "none" is the identity.
        weight: (d,) what the normalised vector is multiplied by, (1 + w) already formed; None for ones.
        bias: (d,) or None.
        eps: Added to the variance or mean square.
    """

    kind: Literal["layer", "rms", "none"]
    weight: Tensor | None
    bias: Tensor | None
    eps: float


@dataclass(frozen=True)
class ValueProjection:
    """What an attention layer does to values: out = Σ_h A_h (X w_v[h] + b_v[h]) w_o[h] + b_o, tokens as rows.

    Args:
        w_v: (query heads, d, d_h), expanded for grouped heads.
        w_o: (query heads, d_h, d).
        kv_of_head: (query heads,) which key/value head each query head reads.
        b_v: (query heads, d_h) or None.
        b_o: (d,) or None.
        place: Whether the norm stands before the branch ("pre") or after the addition ("post").
        norm: That norm.
        output_norm: A norm on the branch's output before it is added (Gemma 2 and 3), or None.
        gain: (d,) what the branch is multiplied by before it is added (LayerScale), or None.
    """

    w_v: Tensor
    w_o: Tensor
    kv_of_head: Tensor
    b_v: Tensor | None
    b_o: Tensor | None
    place: Literal["pre", "post"]
    norm: Norm
    output_norm: Norm | None = None
    gain: Tensor | None = None
