r"""ContraNorm (Guo et al. 2023, arXiv 2303.06562): push tokens away from those they are like, then normalise.

.. math:: \mathrm{LN}(X - s\,S X), \qquad S = \mathrm{softmax}(\hat X \hat X^\top / T)

with :math:`\hat X` the tokens at length 1, as all of the authors' code has it: one step down a loss that wants tokens
spread evenly. The LayerNorm is the block's own: what it reads is edited, and none is added, so that s alone decides
whether the model is changed.

The official code (PKU-ML/ContraNorm) has two forms. For ViT (`ViT_imagenet/models.py`) it stands in front of every norm
of pre-norm blocks, so that the stream itself is not edited, and of the model's last norm, which is in no block and is
left alone here. For BERT (`modeling_bert.py`) it is :math:`(1+s)X - s\,S X` (``identity``) in front of attention's
norm, "the default setting reported in our paper" by its README; for ALBERT it has no identity, and its place is not
said: here it is BERT's. None of them masks padding, which is masked here. ``variant="official"`` is the form for the
host's kind of block, ``variant="paper"`` the equation above in front of attention's norm; `place` and `identity`
overrule either. In front of a norm means what the norm reads: in post-norm blocks the sum of stream and branch.

Neutral at ``scale=0.0``, except with ``learn="positive"`` (which has no zero), and, where s is learned, with ``unit``
or with the identity of the official code for ViT, which then leaves out the 1: :math:`s \odot (X - S X)`.

Causal: a token is compared with itself and those before it of its own packed sequence, earlier tokens in the key/value
cache included (each place keeps d numbers a token); ``dual`` divides by sums over later tokens and has no causal form.
Cost: one attention with one head of width d for each place, through torch's own, which forms no n×n map where it has a
kernel that need not; in a decoder padding and packing need an n×n mask, as they do for the model itself. Sequences
without padding of up to 128 tokens have kernels of their own in half precision on a GPU.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

import torch
from torch import Tensor, nn

from unsmooth.errors import expected
from unsmooth.remedies.base import CausalForm, Edit, remedy
from unsmooth.remedies.call import Call
from unsmooth.remedies.seen_tokens import at_length_one, average_by_likeness, likeness_sums, seen_tokens
from unsmooth.remedies.site import Site
from unsmooth.spec import Range

_Place: TypeAlias = Literal[
    "norms", "attention_norm", "mlp_norm", "attention", "mlp", "after_attention_norm", "after_mlp_norm"
]
_PLACES: Mapping[_Place, tuple[str, ...]] = {
    "norms": ("on_attention_norm_input", "on_mlp_norm_input"),
    "attention_norm": ("on_attention_norm_input",),
    "mlp_norm": ("on_mlp_norm_input",),
    "attention": ("on_attention",),
    "mlp": ("on_mlp",),
    "after_attention_norm": ("on_attention_norm",),
    "after_mlp_norm": ("on_mlp_norm",),
}


@remedy
class ContraNorm(Edit):
    """Take from each token a part of the mean of the tokens it is like."""

    name = "contranorm"
    summary = "each token is pushed away from the tokens it is like, before the norm"
    paper = "Guo et al. 2023, arXiv 2303.06562"
    equation = "LN(X − s·SX), S = softmax(X̂X̂ᵀ/T), X̂ the tokens at length 1"
    neutral: ClassVar[Mapping[str, Any] | None] = {"scale": 0.0}
    causal: ClassVar[CausalForm] = "masked"
    cost = "one attention of width d for each place; in cached decoding d numbers per token are kept for it"
    options: ClassVar[Mapping[str, str]] = {
        "scale": "s, 0 to 2, for good or where training starts; 0.05 is the default of the authors' script for GLUE, "
        "which tries 0.0001 to 0.2",
        "temperature": "T; the larger it is, the more S is the plain mean",
        "variant": "'paper', or 'official': as the authors' code for ViT in pre-norm blocks and for BERT in post-norm "
        "ones (see place and identity)",
        "place": "in front of attention's norm ('attention_norm'), the MLP's ('mlp_norm') or both ('norms'); or on the "
        "output of a branch ('attention', 'mlp') or norm ('after_attention_norm', 'after_mlp_norm'); None for "
        "'norms' in the official form for ViT and where both branches read one norm, 'attention_norm' else",
        "identity": "whether s·X is added, so that equal tokens stay as they are; None for yes in the official form "
        "for BERT and no else",
        "dual": "whether S is divided by the sums of its rows and, added to that, of its columns; not in a decoder",
        "unit": "whether the tokens at length 1 take the place of the tokens (pre_norm in the official code)",
        "learn": "'no', 'channel' (one s per channel) or 'positive' (likewise, kept above zero by an exponential)",
    }

    def __init__(
        self,
        site: Site,
        *,
        scale: Annotated[float, Range(0.0, 2.0)] = 0.05,
        temperature: Annotated[float, Range(1e-3, 1e3)] = 1.0,
        variant: Literal["paper", "official"] = "paper",
        place: _Place | None = None,
        identity: bool | None = None,
        dual: bool = False,
        unit: bool = False,
        learn: Literal["no", "channel", "positive"] = "no",
    ) -> None:
        super().__init__(site)
        if learn == "positive" and scale == 0.0:
            raise expected("scale above 0 where learn='positive' keeps it there", "0", "scale=0.05, learn='channel'")
        post_norm = site.wiring.style == "post"
        like_vit, like_bert = variant == "official" and not post_norm, variant == "official" and post_norm
        one_norm = len(site.wiring.input_norms) == 1  # in front of attention's is in front of the MLP's
        self.place: _Place = place if place is not None else "norms" if like_vit or one_norm else "attention_norm"
        self.identity = identity if identity is not None else like_bert and site.host.name != "albert"
        # The code for ViT has (1+s)X − s·SX where s is fixed, and sX − s·SX where it is learned.
        self.without_one = self.identity and like_vit and learn != "no"
        self.temperature = temperature
        self.dual, self.unit, self.positive = dual, unit, learn == "positive"
        self.fixed: float | None = scale if learn == "no" else None
        if learn != "no":
            start = math.log(scale) if self.positive else scale
            self.scale = nn.Parameter(torch.full((site.dim,), start, **site.like_weights()))

    @classmethod
    def leaks(cls, options: Mapping[str, Any]) -> bool:
        """Only with sums over columns, which later tokens are in."""
        return bool(options.get("dual"))

    def places(self) -> tuple[str, ...]:
        """Those that were asked for."""
        return _PLACES[self.place]

    def on_attention_norm_input(self, read_BND: Tensor, call: Call) -> Tensor:
        """Edit what attention's norm reads."""
        return self.spread(read_BND, call, "attention_norm")

    def on_mlp_norm_input(self, read_BND: Tensor, call: Call) -> Tensor:
        """Edit what the MLP's norm reads."""
        return self.spread(read_BND, call, "mlp_norm")

    def on_attention(self, branch_BND: Tensor, call: Call) -> Tensor:
        """Edit the attention branch."""
        return self.spread(branch_BND, call, "attention")

    def on_mlp(self, branch_BND: Tensor, call: Call) -> Tensor:
        """Edit the MLP branch."""
        return self.spread(branch_BND, call, "mlp")

    def on_attention_norm(self, normed_BND: Tensor, call: Call) -> Tensor:
        """Edit what attention's norm gives."""
        return self.spread(normed_BND, call, "after_attention_norm")

    def on_mlp_norm(self, normed_BND: Tensor, call: Call) -> Tensor:
        """Edit what the MLP's norm gives."""
        return self.spread(normed_BND, call, "after_mlp_norm")

    def spread(self, x_BND: Tensor, call: Call, where: str) -> Tensor:
        """X − s·SX, or with the identity X + s(X − SX)."""
        if self.fixed == 0.0:
            return x_BND
        seen = seen_tokens(x_BND, call, f"{self.name}.{where}", whole=self.dual)
        values = at_length_one(seen.tokens_BMD) if self.unit else seen.tokens_BMD
        alike = average_by_likeness(x_BND, values, seen, self.temperature)
        if self.dual:
            # S is symmetric before the division, so that dividing by columns is Z⊙S(X/Z).
            sums = likeness_sums(x_BND, seen, self.temperature)
            alike = alike + sums * average_by_likeness(x_BND, values / sums, seen, self.temperature)
        x = values[:, -x_BND.shape[1] :] if self.unit else x_BND
        return self._push(x, alike).to(x_BND.dtype)

    def _push(self, x: Tensor, alike: Tensor) -> Tensor:
        if self.fixed is not None and not self.identity:
            return torch.sub(x, alike, alpha=self.fixed)  # whatever the precision of either, in one kernel
        alike = alike.to(x.dtype)
        if self.fixed is not None:
            return torch.lerp(x, alike, -self.fixed)
        scale = (self.scale.exp() if self.positive else self.scale).to(x.dtype)
        if self.without_one:
            return scale * (x - alike)
        return torch.lerp(x, alike, -scale) if self.identity else torch.addcmul(x, alike, scale, value=-1)
