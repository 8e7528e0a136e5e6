r"""PairNorm (Zhao & Akoglu 2020, arXiv 1909.12223): tokens are kept as far from each other as they were.

.. math:: \tilde x_i = s\,\frac{x_i - \bar x}{\sqrt{\tfrac{1}{n}\sum_j \|x_j - \bar x\|^2}}

so that the sum of all squared distances is always :math:`\sum_{ij}\|\tilde x_i - \tilde x_j\|^2 = 2 n^2 s^2`. The token
mean is taken out whole and every other mode is scaled alike, so no mode is favoured over another but the mean. Made for
graphs, where it comes after each convolution; in a block that is the attention branch (``place="attention"``), and
``place="block"`` has it on the stream itself, which then never grows alike. ``scale_by="token"`` is the paper's PN-SI,
every token at length s. ``scale_by="first"`` is PN-SCS of the authors' code (LingxiaoShawn/PairNorm, layers.py), which
the paper does not have: :math:`s\,x_i/\|x_i\| - \bar x`. That code has s = 1 and tries 0.1 to 100; tokens behind a
LayerNorm have length √d, which is the default here.

No setting is neutral. Causal: each token is what PairNorm makes of it among the tokens seen so far, earlier tokens in
the key/value cache counted. A token that sees only itself would be zero; it is taken to length s instead. Cost: a mean,
a mean of squares and two products per block; in cached decoding one vector and one number per block are kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, TypeAlias

import torch
from torch import Tensor

from unsmooth.remedies.base import CausalForm, Edit, remedy
from unsmooth.remedies.call import Call
from unsmooth.remedies.site import Site
from unsmooth.remedies.spreading import EPS, has_kernels, spread_tokens
from unsmooth.remedies.token_mean import token_mean, token_spread
from unsmooth.spec import Range

_Place: TypeAlias = Literal["attention", "block"]
_PLACES: Mapping[_Place, str] = {"attention": "on_attention", "block": "on_block"}


@remedy
class PairNorm(Edit):
    """Take the token mean out and give what is left a fixed size.

    Example:
        >>> import unsmooth
        >>> layer = torch.nn.TransformerEncoderLayer(2, nhead=1, batch_first=True)
        >>> model = torch.nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        >>> edit = unsmooth.apply(model, "pairnorm", scale=5.0).layers[0].unsmooth.pairnorm
        >>> x = torch.tensor([[[3.0, 0.0], [9.0, 8.0]]])  # the mean is (6, 4), and both are at a distance of 5
        >>> edit.on_attention(x, Call(x, False, None, None, None, {})).round().tolist()
        [[[-3.0, -4.0], [3.0, 4.0]]]
    """

    name = "pairnorm"
    summary = "the token mean is taken out, and what is left scaled so that tokens stay as far apart"
    paper = "Zhao & Akoglu 2020, arXiv 1909.12223"
    equation = "x ← s(x − x̄)/√(mean of ‖x − x̄‖²)"
    causal: ClassVar[CausalForm] = "prefix mean"
    cost = "a mean, a mean of squares and two products per block"
    options: ClassVar[Mapping[str, str]] = {
        "scale": "s, above 0, the root mean square distance to the mean; None for √d",
        "scale_by": "'all' (one size for all tokens), 'token' (each at length s, PN-SI) or 'first' (each at length s "
        "before the mean goes, PN-SCS)",
        "place": "'attention' (its output, before the addition) or 'block' (what the block hands on)",
    }

    def __init__(
        self,
        site: Site,
        *,
        scale: Annotated[float, Range(1e-6, 1e6)] | None = None,
        scale_by: Literal["all", "token", "first"] = "all",
        place: _Place = "attention",
    ) -> None:
        super().__init__(site)
        self.scale = site.dim**0.5 if scale is None else scale
        self.scale_by, self.place = scale_by, place

    def places(self) -> tuple[str, ...]:
        """The one that was asked for."""
        return (_PLACES[self.place],)

    def on_attention(self, branch_BND: Tensor, call: Call) -> Tensor:
        """Edit the branch alone."""
        return self._apart(branch_BND, call)

    def on_block(self, out_BND: Tensor, call: Call) -> Tensor:
        """Edit what the block hands on."""
        return self._apart(out_BND, call)

    def _apart(self, x_BND: Tensor, call: Call) -> Tensor:
        key = f"{self.name}.{self.place}"
        if self.scale_by == "first":
            x = x_BND.to(torch.promote_types(x_BND.dtype, torch.float32))
            mean = token_mean(x, call, key, keep_alone=True)
            return (_sized(x, x.square().sum(dim=-1, keepdim=True), self.scale) - mean).to(x_BND.dtype)
        sees_all = not call.causal and call.real_BN is None
        if self.scale_by == "all" and sees_all and has_kernels(x_BND):
            return spread_tokens(x_BND, self.scale)
        away_BND, spread_BN1 = token_spread(x_BND, call, key, keep_alone=True)
        if self.scale_by == "token":
            spread_BN1 = away_BND.square().sum(dim=-1, keepdim=True)
        return _sized(away_BND, spread_BN1, self.scale).to(x_BND.dtype)


def _sized(x: Tensor, square: Tensor, scale: float) -> Tensor:
    """`x` at the scale at which `square` would be the square of it."""
    return x * (scale * torch.rsqrt(square + EPS))
