r"""Mimetic initialisation (Trockman & Kolter 2023, arXiv 2305.09828): attention starts as trained attention looks.

.. math:: W_V W_O = \alpha Z - \beta I, \qquad W_Q^h (W_K^h)^\top \approx \alpha' Z + \beta' I

with Z normal of variance 1/d, each its own. H near −βI sharpens: what a token gets from all others is taken from it. α
= β = 0.4 and α' = β' = 0.7, as two public copies of the authors' code have them; it was not at hand itself. A head's
queries and keys are narrower than the stream, so their product is the nearest of their rank, by singular values. Where
query heads share a key/value head, so do their products, each with a Z of its own, and what the values give is divided
among them. Logits are taken to be divided by √(head width); where a host scales them otherwise (T5: not at all),
queries and keys make up for it. Biases stay, and so does all else: the paper also starts positions as sinusoids, which
are not a block's. `unsmooth.networks` start so with ``init="mimetic"``.

Weights are drawn once, and trained on from there; a checkpoint that is loaded later replaces them. A trained model
forgets. Undoing it brings back the weights that were drawn over.

Neutral at ``values="keep", queries="keep"``. Causal: nothing looks across tokens that did not before. Cost: none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from unsmooth.networks.mimetic import QUERY_KEY, VALUE_OUTPUT, near_identity
from unsmooth.remedies.base import CausalForm, remedy
from unsmooth.remedies.derived import is_derived
from unsmooth.remedies.queries import queries_and_keys
from unsmooth.remedies.redrawing import Redrawing
from unsmooth.remedies.site import Site
from unsmooth.spec import Range


@remedy
class Mimetic(Redrawing):
    """Start values times output near −I, and queries times keys near I.

    Example:
        >>> import unsmooth
        >>> from unsmooth.models.value_projection import value_projection
        >>> layer = torch.nn.TransformerEncoderLayer(4, nhead=2, batch_first=True)
        >>> model = torch.nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        >>> _ = unsmooth.apply(model, "mimetic", alpha=0.0, beta=0.25)
        >>> value_projection(model, 0).summed().diag()
        tensor([-0.2500, -0.2500, -0.2500, -0.2500])
    """

    name = "mimetic"
    summary = "values times output weights start near −I, queries times keys near I"
    paper = "Trockman & Kolter 2023, arXiv 2305.09828"
    equation = "W_V·W_O = αZ − βI, W_Q·W_Kᵀ ≈ α'Z + β'I, Z normal of variance 1/d"
    neutral: ClassVar[Mapping[str, Any] | None] = {"values": "keep", "queries": "keep"}
    causal: ClassVar[CausalForm] = "unchanged"
    folds = "it is in the weights from the start"
    cost = "none"
    options: ClassVar[Mapping[str, str]] = {
        "alpha": "α, 0 to 10",
        "beta": "β, -10 to 10",
        "query_alpha": "α', 0 to 10",
        "query_beta": "β', -10 to 10",
        "values": "'draw' values and output, or 'keep' them",
        "queries": "'draw' queries and keys, or 'keep' them",
    }

    def __init__(
        self,
        site: Site,
        *,
        alpha: Annotated[float, Range(0.0, 10.0)] = VALUE_OUTPUT,
        beta: Annotated[float, Range(-10.0, 10.0)] = VALUE_OUTPUT,
        query_alpha: Annotated[float, Range(0.0, 10.0)] = QUERY_KEY,
        query_beta: Annotated[float, Range(-10.0, 10.0)] = QUERY_KEY,
        values: Literal["draw", "keep"] = "draw",
        queries: Literal["draw", "keep"] = "draw",
    ) -> None:
        super().__init__(site, draws=True)
        self.alpha, self.beta = alpha, beta
        self.query_alpha, self.query_beta = query_alpha, query_beta
        self.draws_values, self.draws_queries = values == "draw", queries == "draw"

    @classmethod
    def refusal(cls, site: Site, options: Mapping[str, Any]) -> str | None:
        """Weights that are not there to be drawn, or too wide."""
        heads = site.wiring.weights.heads
        if any(is_derived(module) for module in site.block.modules()):
            return "another remedy computes some of its weights, so there are none to draw"
        if options.get("values") != "keep" and (reason := site.why_not_written()) is not None:
            return reason
        if options.get("values") != "keep" and heads.key_value * heads.dim > site.dim:
            return (
                f"its {heads.key_value} value heads of width {heads.dim} are together wider than the stream "
                f'({site.dim}), so that some would be zero for good; values="keep" works'
            )
        if options.get("queries") != "keep" and (queries_and_keys(site) is None or heads.dim > site.dim):
            return 'where its queries and keys are is not known; queries="keep" works'
        return None

    @torch.no_grad()
    def install(self, site: Site) -> None:
        """Draw the weights."""
        self.keep(self._weights(site))
        if self.draws_values:
            self._draw_values(site)
        if self.draws_queries:
            self._draw_queries(site)

    def remove(self, site: Site) -> None:
        """Put back what was drawn over."""
        self.give_back(self._weights(site))

    def fold(self, site: Site) -> None:
        """Nothing is left to do."""

    def folds_into(self, site: Site) -> Iterable[nn.Parameter]:
        """None."""
        return ()

    def _draw_values(self, site: Site) -> None:
        value_DKE, output_FD = self._weights(site)[:2]
        heads, group = site.wiring.weights.heads, site.wiring.weights.group
        left_DM, right_MD = near_identity(self.alpha, -self.beta, site.dim, heads.key_value * heads.dim)
        value_DKE.copy_(left_DM.reshape(value_DKE.shape))
        # All query heads of a group read the same values, so each gives its share of what these are to give.
        shares = right_MD.reshape(heads.key_value, 1, heads.dim, -1).expand(-1, group, -1, -1) / group
        output_FD.copy_(shares.reshape(output_FD.shape))

    def _draw_queries(self, site: Site) -> None:
        query_DKGE, key_DKE = self._weights(site)[-2:]
        heads, group = site.wiring.weights.heads, site.wiring.weights.group
        usual = heads.dim**-0.5
        more = usual / (site.wiring.weights.logit_scale or usual)
        alpha, beta = self.query_alpha * more, self.query_beta * more
        for head in range(heads.key_value):
            left_FE, right_ED = near_identity(alpha, beta, site.dim, heads.dim, copies=group)
            query_DKGE[:, head].copy_(left_FE.reshape(group, site.dim, -1).transpose(0, 1))
            key_DKE[:, head].copy_(right_ED.mT)

    def _weights(self, site: Site) -> list[Tensor]:
        """Those that are drawn, to be written to: values and output, queries and keys, as the options say."""
        found: list[Tensor] = []
        if self.draws_values:
            found += [site.value_places(), site.output_matrix().data]
        if self.draws_queries:
            found += queries_and_keys(site) or ()
        return found
