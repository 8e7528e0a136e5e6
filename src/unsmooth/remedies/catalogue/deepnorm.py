r"""DeepNorm (Wang et al. 2022, arXiv 2203.00555): post-norm with a heavier stream and a smaller start.

.. math:: x \leftarrow \mathrm{LN}(\alpha x + f(x)), \qquad \alpha = (2N)^{1/4}, \quad \beta = (8N)^{-1/4}

for N layers of an encoder or a decoder alone. A norm forgets scale, so :math:`\mathrm{LN}(\alpha x + f) =
\mathrm{LN}(x + f/\alpha)` with :math:`\epsilon/\alpha^2` for its ε: the branches are divided and the norms' eps is set,
which is the same to rounding. It divides H by α. N is how many blocks a token passes, so where one block is called
again and again (ALBERT) each call counts.

The weights of values, attention's output and the MLP start smaller, by β; queries and keys do not. ``variant="paper"``
draws them anew (Xavier normal with gain β; biases stay), ``variant="official"`` multiplies what is there by β, biases
too, as torchscale does after its own initialisation. Both make a trained model forget; ``init="keep"`` does not.

Neutral at ``alpha=1.0, init="keep"``. Only for post-norm blocks. Causal: nothing looks across tokens. Cost: one
multiplication per branch; none once folded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar, Literal

from torch import Tensor, nn

from unsmooth.models.block_parts import part
from unsmooth.models.value_projection import ValueProjection
from unsmooth.remedies.base import CausalForm, remedy
from unsmooth.remedies.branches import crossed, fold_scales, folded_scales, scaled_output
from unsmooth.remedies.call import Call
from unsmooth.remedies.derived import is_derived
from unsmooth.remedies.norms import are_dropped
from unsmooth.remedies.redrawing import Redrawing
from unsmooth.remedies.site import Site, as_in_out
from unsmooth.spec import Range


@remedy
class DeepNorm(Redrawing):
    """Weigh the stream by α in front of each norm, and start the branches smaller by β.

    Example:
        >>> import unsmooth
        >>> layer = nn.TransformerEncoderLayer(4, nhead=2, batch_first=True)
        >>> model = nn.TransformerEncoder(layer, 8, enable_nested_tensor=False)
        >>> _ = unsmooth.apply(model, "deepnorm")
        >>> edit = model.layers[0].unsmooth.deepnorm
        >>> edit.alpha, round(edit.beta, 4)  # (2·8)^¼ and (8·8)^-¼
        (2.0, 0.3536)
    """

    name = "deepnorm"
    summary = "the stream is weighed by α in front of each norm, and the branches start anew, smaller by β"
    paper = "Wang et al. 2022, arXiv 2203.00555"
    equation = "x ← LN(αx + f(x)), α = (2N)^¼; V, O and MLP start with gain β = (8N)^-¼"
    neutral: ClassVar[Mapping[str, Any] | None] = {"alpha": 1.0, "init": "keep"}
    causal: ClassVar[CausalForm] = "unchanged"
    folds = "1/α goes into the last linear map of each branch; the norms get their own eps back"
    cost = "one multiplication per branch; none once folded"
    options: ClassVar[Mapping[str, str]] = {
        "alpha": "α; None for (2N)^¼ with N the block calls of one pass",
        "beta": "β; None for (8N)^-¼",
        "variant": "'paper' draws V, O and MLP weights anew (Xavier normal, gain β), 'official' multiplies what is "
        "there, biases too",
        "init": "'beta' does so, 'keep' leaves the weights alone",
    }
    # Dropped norms would leave αx + f(x) to grow.
    needs_norms: ClassVar[bool] = True

    def __init__(
        self,
        site: Site,
        *,
        alpha: Annotated[float, Range(0.0, above=True)] | None = None,
        beta: Annotated[float, Range(0.0, above=True)] | None = None,
        variant: Literal["paper", "official"] = "paper",
        init: Literal["beta", "keep"] = "beta",
    ) -> None:
        super().__init__(site, draws=init == "beta")
        self.alpha = (2.0 * site.depth) ** 0.25 if alpha is None else alpha
        self.beta = (8.0 * site.depth) ** -0.25 if beta is None else beta
        self.variant, self.starts_anew = variant, init == "beta"
        self.own_eps: list[float] = []

    @classmethod
    def refusal(cls, site: Site, options: Mapping[str, Any]) -> str | None:
        """Where there is no norm after the addition, or no weights to start anew."""
        if site.wiring.style != "post":
            where = "has its norms before the branches" if site.wiring.style == "pre" else "adds both branches at once"
            return f"it {where}, so no norm follows αx + f(x) and the stream would grow by α at every addition"
        if (reason := crossed(site, "for which the paper has another α")) is not None:
            return reason
        if are_dropped(site):
            return "another remedy has dropped its norms, so the stream would grow by α at every addition"
        if not all(isinstance(norm, nn.LayerNorm) for norm in _norms(site)):
            return "the norms after its additions are not nn.LayerNorm"
        if options.get("init") != "keep" and isinstance(site.wiring.values, str):
            return 'its value weights are not known, so there are none to draw; init="keep" works'
        if options.get("init") != "keep" and any(is_derived(module) for module in site.block.modules()):
            return 'another remedy computes its value and output weights, so there are none to draw; init="keep" works'
        return None

    def alters(self, site: Site) -> Iterable[nn.Module]:
        """The norms, whose eps is set."""
        return _norms(site)

    def install(self, site: Site) -> None:
        """Scale eps with the square of what the norm reads; start V, O and the MLP anew."""
        self.own_eps = [float(norm.eps) for norm in _norms(site)]
        for norm, eps in zip(_norms(site), self.own_eps, strict=True):
            norm.eps = eps / self.alpha**2
        if not self.starts_anew:
            return
        weights = _weights(site) if self.variant == "paper" else [*_weights(site), *_biases(site)]
        self.keep(weights)
        for weight in weights:
            if self.variant == "official":
                weight.mul_(self.beta)
            else:
                fans = weight.shape[0] + weight[0].numel()
                weight.normal_(0.0, self.beta * (2.0 / fans) ** 0.5)

    def remove(self, site: Site) -> None:
        """Put eps and weights back."""
        self._put_back_eps(site)
        if self.starts_anew:
            self.give_back([*_weights(site), *_biases(site)])

    def on_attention(self, branch_BND: Tensor, call: Call) -> Tensor:
        """Divide the branch."""
        return branch_BND * (1.0 / self.alpha)

    def on_mlp(self, branch_BND: Tensor, call: Call) -> Tensor:
        """Divide the branch."""
        return branch_BND * (1.0 / self.alpha)

    def fold(self, site: Site) -> None:
        """Into both branches. No weight holds eps, so it goes back: a change of about eps in outputs of size one."""
        self._put_back_eps(site)
        fold_scales(site, 1.0 / self.alpha, 1.0 / self.alpha)

    def folds_into(self, site: Site) -> Iterable[nn.Parameter]:
        """What ends both branches."""
        return folded_scales(site)

    def effective(self, values: ValueProjection) -> ValueProjection:
        """H is divided by α."""
        return scaled_output(values, 1.0 / self.alpha)

    def report(self) -> Mapping[str, float]:
        """What depth made of them."""
        return {"alpha": self.alpha, "beta": self.beta}

    def _put_back_eps(self, site: Site) -> None:
        for norm, eps in zip(_norms(site), self.own_eps, strict=False):
            norm.eps = eps


def _norms(site: Site) -> list[Any]:
    return [part(site.block, path) for path in site.wiring.norms]


def _weights(site: Site) -> list[Tensor]:
    """Of values, output and MLP, (…) first in then out or the other way round: views that can be written to."""
    wiring, value = site.wiring, part(site.block, site.wiring.weights.value)
    linears: list[Any] = [part(site.block, path) for path in (wiring.weights.output, *wiring.mlp)]
    values = wiring.weights.layout.values(as_in_out(value, wiring.weights.value_weight).data, wiring.weights.heads)
    return [values, *(linear.weight.data for linear in linears)]


def _biases(site: Site) -> list[Tensor]:
    """Of the same maps, where they have them."""
    wiring, value = site.wiring, part(site.block, site.wiring.weights.value)
    linears: list[Any] = [part(site.block, path) for path in (wiring.weights.output, *wiring.mlp)]
    found = getattr(value, wiring.weights.value_bias)
    values = [] if found is None else [wiring.weights.layout.values(found.data, wiring.weights.heads)]
    return [*values, *(linear.bias.data for linear in linears if linear.bias is not None)]
