r"""SoftDecay (Yan et al. 2022, "Addressing token uniformity in transformers via singular value transformation").

.. math:: X = U S V^\top \;\to\; U \tilde S V^\top, \qquad
          \tilde s = \frac{s_{max}}{f(s_{max})} f(s), \quad
          f(s) = -\tfrac{1}{\alpha}\log\big(1 - \alpha(s + \alpha)\big)

with −1 < α < 0, or the logarithm of small s would not exist. The largest singular value stays and the others come
nearer to it: tokens that are nearly alike have one large singular value (the token mean's) and many small ones. It
knows nothing of the mean itself, so a token matrix without one is flattened too. f is zero at s = −α and turns smaller
singular values round; matrices are far larger than that, unless all tokens nearly vanish. Singular values that are zero
but for rounding stay zero.

The authors' code (hanqi-qi/tokenUni, transform_layer.py and soft_decay.py) starts at α = −0.2, learns it, and has it in
the last block of BERT alone: ``layers=-1``. There the last norm reads SoftDecay of the sum, and the sum's own stream
once more, LN(SoftDecay(x + f(x)) + x): ``variant="official"``, in post-norm blocks. Its README has it on the output, as
is the default here. Learned, α is kept between −1 and 0 by a sigmoid; that code leaves it free, and counts padding.

Neutral at ``alpha=0.0, learn="no", variant="paper"``, for f(s) = s. Not causal: singular values are of all tokens at
once, so decoders are refused. Padding is no row of X and stays as it is. Cost: one singular value decomposition per
block and sequence, by far the dearest remedy here; on a GPU it waits for the host, so such a step cannot be captured as
a CUDA graph.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from unsmooth.errors import expected
from unsmooth.remedies.base import CausalForm, Edit, remedy
from unsmooth.remedies.branches import has_cross
from unsmooth.remedies.call import Call
from unsmooth.remedies.singular_values import with_singular_values
from unsmooth.remedies.site import Site
from unsmooth.spec import Range


@remedy
class SoftDecay(Edit):
    """Bring the singular values of the token matrix nearer to the largest.

    Example:
        >>> import unsmooth
        >>> layer = nn.TransformerEncoderLayer(2, nhead=1, batch_first=True)
        >>> model = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        >>> edit = unsmooth.apply(model, "softdecay", learn="no").layers[0].unsmooth.softdecay
        >>> x = torch.tensor([[[9.0, 0.0], [0.0, 4.0]]])  # 5 log(2.76) for 9 and 5 log(1.76) for 4
        >>> edit.on_block(x, Call(x, False, None, None, None, {}))
        tensor([[[9.0000, 0.0000],
                 [0.0000, 5.0115]]])
    """

    name = "softdecay"
    summary = "the singular values of the token matrix are brought nearer to the largest"
    paper = "Yan et al. 2022, UAI (openreview BtUxE_8i5l5)"
    equation = "s ← f(s)·s_max/f(s_max), f(s) = −log(1 − α(s + α))/α"
    neutral: ClassVar[Mapping[str, Any] | None] = {"alpha": 0.0, "learn": "no", "variant": "paper"}
    causal: ClassVar[CausalForm] = "none"
    cost = "one SVD of the tokens per block"
    options: ClassVar[Mapping[str, str]] = {
        "alpha": "α, -0.99 to 0, where training starts or for good; 0 changes nothing",
        "learn": "'layer' (one α per layer, as in the authors' code) or 'no'",
        "variant": "'paper' changes what the block hands on, 'official' what its last norm reads (post-norm blocks)",
    }

    def __init__(
        self,
        site: Site,
        *,
        alpha: Annotated[float, Range(-0.99, 0.0)] = -0.2,
        learn: Literal["layer", "no"] = "layer",
        variant: Literal["paper", "official"] = "paper",
    ) -> None:
        super().__init__(site)
        self.official = variant == "official"
        self.fixed: float | None = alpha if learn == "no" else None
        if learn == "layer":
            if alpha == 0.0:
                raise expected("alpha below 0 where it is learned and kept there", "0", 'alpha=-0.2 or learn="no"')
            # Not a scalar: FSDP shards parameters, and a scalar has nothing to shard.
            start = math.log(-alpha / (1.0 + alpha))
            self.raw_alpha = nn.Parameter(torch.full((1,), start, **site.like_weights()))

    @classmethod
    def refusal(cls, site: Site, options: Mapping[str, Any]) -> str | None:
        """Where the official form has no norm to come before, or not the stream that joins the MLP."""
        if options.get("variant") != "official":
            return None
        if site.wiring.style != "post":
            return 'no norm follows its additions, in front of which the official form acts; variant="paper" works'
        if has_cross(site):
            return 'its cross-attention changes the stream before the MLP joins it; variant="paper" works'
        return None

    def places(self) -> tuple[str, ...]:
        """What the block hands on, or what its last norm reads."""
        return ("on_mlp_norm_input",) if self.official else ("on_block",)

    def on_block(self, out_BND: Tensor, call: Call) -> Tensor:
        """Edit what the block hands on."""
        return self._flatter(out_BND, call)

    def on_mlp_norm_input(self, read_BND: Tensor, call: Call) -> Tensor:
        """What becomes of the sum, and its stream once more."""
        assert call.middle is not None, "noted for every edit of what that norm reads"
        return self._flatter(read_BND, call) + call.middle

    def _flatter(self, x_BND: Tensor, call: Call) -> Tensor:
        if self.fixed == 0.0:
            return x_BND
        wide = torch.promote_types(x_BND.dtype, torch.float32)
        if self.fixed is not None:
            return flatter(x_BND, torch.full((1,), self.fixed, dtype=wide, device=x_BND.device), call.real_BN)
        return flatter(x_BND, -self.raw_alpha.to(wide).sigmoid(), call.real_BN)

    def report(self) -> Mapping[str, float]:
        """α as it is."""
        return {"alpha": self.fixed if self.fixed is not None else -float(self.raw_alpha.detach().sigmoid())}


def flatter(x_BND: Tensor, alpha: Tensor, real_BN: Tensor | None = None) -> Tensor:
    """Token matrices with their singular values brought nearer to the largest; padding stays as it is.

    Example:
        >>> x = torch.tensor([[[9.0, 0.0], [0.0, 4.0], [7.0, 7.0]]])
        >>> padded = torch.tensor([[True, True, False]])
        >>> flatter(x, torch.tensor([-0.2]), padded)
        tensor([[[9.0000, 0.0000],
                 [0.0000, 5.0115],
                 [7.0000, 7.0000]]])
    """

    def change(s: Tensor) -> Tensor:
        new = soft_log(s, alpha)
        return new * (s[..., :1] / new[..., :1])

    def slopes(s: Tensor) -> Tensor:
        largest = s[..., :1, None]
        return slope_between(s.unsqueeze(-1), s.unsqueeze(-2), alpha) * (largest / soft_log(largest, alpha))

    if real_BN is None:
        return with_singular_values(x_BND, change, slopes)
    real_BN1 = real_BN.unsqueeze(-1)
    return torch.where(real_BN1, with_singular_values(torch.where(real_BN1, x_BND, 0.0), change, slopes), x_BND)


def soft_log(s: Tensor, alpha: Tensor) -> Tensor:
    """F(s) = −log(1 − α(s + α))/α.

    >>> soft_log(torch.tensor([0.5]), torch.tensor([-0.5])), soft_log(torch.tensor([2.5]), torch.tensor([-0.5]))
    (tensor([0.]), tensor([1.3863]))
    """
    return torch.log1p(-alpha * (s + alpha)) / -alpha


def slope_between(a: Tensor, b: Tensor, alpha: Tensor) -> Tensor:
    """(f(a) − f(b))/(a − b), which is the slope of f where both are one.

    >>> a, b, alpha = torch.tensor([2.5, 0.5]), torch.tensor([0.5, 0.5]), torch.tensor([-0.5])
    >>> slope_between(a, b, alpha)  # 1.3863 over 2, and 1
    tensor([0.6931, 1.0000])
    """
    inner = 1.0 - alpha * (b + alpha)
    part = -alpha * (a - b) / inner
    near = part.abs() < 1e-4
    safe = torch.where(near, 1.0, part)
    return torch.where(near, 1.0 - part / 2.0 + part.square() / 3.0, torch.log1p(safe) / safe) / inner
