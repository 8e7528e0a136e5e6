r"""Differential attention (Ye et al. 2024, arXiv 2410.05258): one map less a learned share of another.

.. math:: A = \mathrm{softmax}_1 - \lambda\,\mathrm{softmax}_2, \qquad
    \lambda = e^{\lambda_{q1} \cdot \lambda_{k1}} - e^{\lambda_{q2} \cdot \lambda_{k2}} + \lambda_{\mathrm{init}}

with :math:`\lambda_{\mathrm{init}} = 0.8 - 0.6\,e^{-0.3\,l}` in layer l from 0, λ one number per layer, and the four
vectors of half a head's width drawn with a standard deviation of 0.1. Each head is then normalised (RMSNorm with
learned gains that heads share, eps 1e-5) and multiplied by :math:`1 - \lambda_{\mathrm{init}}`: as in the authors' code
(microsoft/unilm, Diff-Transformer), which is the default here.

``form="split"`` is the paper's: queries and keys of a head are split in two, and each half makes a map of its own,
with logits scaled by half the width. Halves are the even and the odd coordinates, so that those which rotary positions
turn together (i and i + half the width) stay together. Without λ that is still not the softmax of the whole head, so
no λ is neutral: it is made for training from the start. ``form="kept"`` is ours, for trained models: the host's own map
less λ times that of the odd half.

Mode map: the eigenvalue of the token mean becomes 1 − λ (before the norm, which is not linear); the rest has no closed
form, as two maps are subtracted. What a host adds to its logits (relative positions) is added to those of both maps.

Neutral at ``form="kept", lam=0.0, learn="head", norm=False``. Causal: both maps hide the future. Cost: attention runs
twice, in the paper's form with queries and keys of half the width; there, on a GPU (with no dropout of maps), both maps
are made in one kernel. Where blocks are compiled one by one, each is by itself unless `lam` is given, as its λ_init is
another: ``torch._dynamo.config.recompile_limit`` has to allow as many.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - as everywhere

from unsmooth.remedies.base import CausalForm, Edit, remedy
from unsmooth.remedies.call import Call
from unsmooth.remedies.head_norm import head_norm
from unsmooth.remedies.mixed_heads import has_kernels, mixed_by_kernels
from unsmooth.remedies.mixing import Mix
from unsmooth.remedies.site import Site
from unsmooth.remedies.subtracting import share_of_second, weights_of_both
from unsmooth.spec import Range


@remedy
class Differential(Edit):
    """Subtract a second map."""

    name = "differential"
    summary = "of attention's map a learned share of a second one is taken away; heads are normalised"
    paper = "Ye et al. 2024, arXiv 2410.05258"
    equation = "A = softmax₁ − λ·softmax₂, then RMSNorm per head times 1 − λ_init"
    neutral: ClassVar[Mapping[str, Any] | None] = {"form": "kept", "lam": 0.0, "learn": "head", "norm": False}
    causal: ClassVar[CausalForm] = "masked"
    cost = "attention runs twice"
    options: ClassVar[Mapping[str, str]] = {
        "form": "'split' (each half of a head makes a map, as in the paper) or 'kept' (the host's own is the first)",
        "lam": "λ_init, 0 to 1; None for 0.8 − 0.6·exp(−0.3·layer)",
        "learn": "'layer' (λ by four vectors, as in the paper), 'head' (one number per head from λ_init) or 'no'",
        "norm": "True to normalise each head and multiply it by 1 − λ_init, as the paper does, or False",
    }

    def __init__(
        self,
        site: Site,
        *,
        form: Literal["split", "kept"] = "split",
        lam: Annotated[float, Range(0.0, 1.0)] | None = None,
        learn: Literal["layer", "head", "no"] = "layer",
        norm: bool = True,
    ) -> None:
        super().__init__(site)
        self.splits = form == "split"
        self.start = 0.8 - 0.6 * math.exp(-0.3 * site.index) if lam is None else lam
        heads, like = site.wiring.weights.heads, site.like_weights()
        self.lam = nn.Parameter(torch.full((heads.query,), self.start, **like)) if learn == "head" else None
        self.vectors = nn.Parameter(0.1 * torch.randn(4, heads.dim // 2).to(**like)) if learn == "layer" else None
        self.gain = nn.Parameter(torch.ones(heads.dim, **like)) if norm else None

    @classmethod
    def refusal(cls, site: Site, options: Mapping[str, Any]) -> str | None:
        """Half a head must be a whole number wide."""
        width = site.wiring.weights.heads.dim
        return f"its heads are {width} wide, which has no half" if width % 2 else None

    def on_mixing(self, mix: Mix, call: Call) -> Tensor:
        """The first map's mixture less λ times the second's."""
        if self.splits and has_kernels(mix, parts=2):
            mixed = mixed_by_kernels(mix, self._weights(mix.query.device), parts=2)
        else:
            # By the square root of two, as half the width is what the logits of a half are scaled by.
            first = mix(query=mix.query[..., ::2] * math.sqrt(2.0), key=mix.key[..., ::2]) if self.splits else mix()
            second = mix(query=mix.query[..., 1::2] * math.sqrt(2.0), key=mix.key[..., 1::2])
            mixed = torch.addcmul(first, self.share(first.device).to(first.dtype), second, value=-1.0)
        return mixed if self.gain is None else head_norm(mixed, self.gain, 1.0 - self.start)

    def share(self, device: torch.device | None = None) -> Tensor:
        """λ, one number, or (heads, 1, 1); where nobody learns it, on this device."""
        if self.lam is not None:
            return self.lam.view(-1, 1, 1)
        if self.vectors is None:
            return torch.full((), self.start, device=device)
        return share_of_second(self.vectors, self.start)

    def _weights(self, device: torch.device) -> Tensor:
        """1 and −λ, (1 or heads, 1, 2)."""
        if self.vectors is not None:
            return weights_of_both(self.vectors, self.start)
        return F.pad(-self.share(device).view(-1, 1, 1).float(), (1, 0), value=1.0)

    def report(self) -> Mapping[str, float]:
        """How much of the second map is taken away."""
        return {"mean lambda": float(self.share().detach().mean())}
