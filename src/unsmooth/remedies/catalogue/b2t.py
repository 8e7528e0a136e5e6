r"""B2T connection (Takase et al. 2022, arXiv 2206.00330): a block's input is added again in front of its last norm.

.. math:: x' = \mathrm{LN}(x + \mathrm{att}(x)), \qquad y = \mathrm{LN}(w\,x + x' + \mathrm{mlp}(x')), \quad w = 1

so that in a post-norm block one path from bottom to top passes a single norm. The official code does more, which is
behind options: ``variant="official"`` multiplies every matrix of the block by 1/√L when it is applied, and
``norm="drop"`` is its form without norms, :math:`y = w\,x + s\,(x' + \mathrm{mlp}(x'))` with :math:`x' = x +
\mathrm{att}(x)`, :math:`w = \min(L^{-0.15}, L/12)` and :math:`s = d^{-0.2}`, L layers of width d.

Neutral at ``weight=0.0, norm="keep", variant="paper"``. Only for post-norm blocks; without norms only for those without
cross-attention, whose norm would stay. Causal: nothing looks across tokens. Cost: one addition per block.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar, Literal

from torch import Tensor, nn

from unsmooth.errors import expected
from unsmooth.remedies.base import CausalForm, remedy
from unsmooth.remedies.block import HOME
from unsmooth.remedies.branches import crossed
from unsmooth.remedies.call import Call
from unsmooth.remedies.derived import is_derived
from unsmooth.remedies.norms import (
    Dropped,
    are_dropped,
    drop_norms,
    norms_of,
    put_back_norms,
    take_norms_out,
    who_needs_norms,
)
from unsmooth.remedies.redrawing import Redrawing
from unsmooth.remedies.site import Site
from unsmooth.spec import Range


@remedy
class B2T(Redrawing):
    """Add the input of a block again in front of its last norm.

    Example:
        >>> import torch, unsmooth
        >>> layer = torch.nn.TransformerEncoderLayer(32, nhead=2, batch_first=True)
        >>> model = torch.nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        >>> _ = unsmooth.apply(model, "b2t", norm="drop")
        >>> edit = model.layers[0].unsmooth.b2t
        >>> edit.weight, edit.scale  # 3/12 < 3^-0.15, and 32^-0.2
        (0.25, 0.5)
    """

    name = "b2t"
    summary = "a block's input is added again in front of its last norm"
    paper = "Takase et al. 2022, arXiv 2206.00330"
    equation = "x' = LN(x + att(x)), y = LN(w·x + x' + mlp(x')), w = 1"
    neutral: ClassVar[Mapping[str, Any] | None] = {"weight": 0.0, "norm": "keep", "variant": "paper"}
    causal: ClassVar[CausalForm] = "unchanged"
    cost = "one addition per block"
    options: ClassVar[Mapping[str, str]] = {
        "weight": "w, 0 to 10; None for 1, or for min(L^-0.15, L/12) without norms",
        "norm": "'keep', or 'drop' for the official code's form without norms, y = w·x + s·(x' + mlp(x'))",
        "scale": "s, 0 to 10, without norms; None for d^-0.2",
        "variant": "'official' multiplies every matrix of the block by 1/√L when it is applied, as the official code "
        "does; 'paper' leaves them alone",
    }

    def __init__(
        self,
        site: Site,
        *,
        weight: Annotated[float, Range(0.0, 10.0)] | None = None,
        norm: Literal["keep", "drop"] = "keep",
        scale: Annotated[float, Range(0.0, 10.0)] | None = None,
        variant: Literal["paper", "official"] = "paper",
    ) -> None:
        super().__init__(site, draws=variant == "official")
        if norm == "keep" and scale is not None:
            raise expected('scale=None with norm="keep", which a norm would undo', repr(scale), 'norm="drop"')
        self.drops, self.rescales = norm == "drop", variant == "official"
        usual = min(site.depth**-0.15, site.depth / 12) if self.drops else 1.0
        self.weight = usual if weight is None else weight
        self.scale = site.dim**-0.2 if scale is None else scale
        self.shrink = site.depth**-0.5
        self.dropped: list[Dropped] = []

    @property
    def needs_norms(self) -> bool:
        """Whether the norms may be dropped by another remedy."""
        return not self.drops

    @classmethod
    def refusal(cls, site: Site, options: Mapping[str, Any]) -> str | None:
        """Where there is no last norm to go in front of."""
        if site.wiring.style != "post":
            return "it has its norms before the branches: its input reaches its output past every norm already"
        if are_dropped(site):
            return "another remedy has dropped the norms that it goes in front of"
        if options.get("norm") == "drop":
            if (reason := crossed(site, 'and would keep its norm; norm="keep" works')) is not None:
                return reason
            if (other := who_needs_norms(site)) is not None:
                return f'{other} rests on the norms that norm="drop" takes away'
        if options.get("variant") == "official" and any(is_derived(module) for module in site.block.modules()):
            return "another remedy computes its value and output weights, which cannot be multiplied"
        return None

    def places(self) -> tuple[str, ...]:
        """In front of the last norm, or at the block's output where there is none."""
        return ("on_block",) if self.drops else ("on_mlp_sum",)

    def alters(self, site: Site) -> Iterable[nn.Module]:
        """The norms, where it drops them."""
        return norms_of(site) if self.drops else ()

    def install(self, site: Site) -> None:
        """Drop norms and shrink weights, where the options say so."""
        if self.drops:
            self.dropped = drop_norms(site)
        if self.rescales:
            self.keep(_matrices(site))
            for matrix in _matrices(site):
                matrix.mul_(self.shrink)

    def remove(self, site: Site) -> None:
        """Put both back."""
        put_back_norms(site, self.dropped)
        self.give_back(_matrices(site))

    def on_mlp_sum(self, sum_BND: Tensor, call: Call) -> Tensor:
        """The block's input, once more."""
        return call.stream * self.weight

    def on_block(self, out_BND: Tensor, call: Call) -> Tensor:
        """Without norms, both parts are scaled."""
        return call.stream * self.weight + out_BND * self.scale

    def adopt(self, state: dict[str, Any], prefix: str, block_prefix: str, site: Site) -> None:
        """A plain checkpoint has weights of dropped norms, which wait until the norms come back."""
        super().adopt(state, prefix, block_prefix, site)
        take_norms_out(state, block_prefix, site, self.dropped)


def _matrices(site: Site) -> list[Tensor]:
    """Every weight of the block that is not a vector, and not a remedy's."""
    found = site.block.named_parameters()
    return [weight.data for name, weight in found if weight.ndim > 1 and HOME not in name.split(".")]
