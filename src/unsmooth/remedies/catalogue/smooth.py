r"""Smoothing (Dovonon, Bronstein & Kusner, "Setting the Record Straight on Transformer Oversmoothing", 2401.04301).

.. math:: H = W_V W_O = V\Lambda V^{-1}, \qquad \Lambda = \mathrm{diag}(\mathrm{clip}(\psi, 0, 1))

The counterpart of `sharpen`: with λ in (0, 1] the part that all tokens share grows more than any other, so tokens
become alike with depth. Bases, options, starts and costs are those of `sharpen`, with :math:`H = +BB^\top` for
`"gram"`. The first version of the paper has :math:`+\psi^2` here, without a bound: `eigenvalues="square"`. One version
of its abstract says that smoothing can help in image classification, and that text models forced either way were worse.

No neutral setting: every model is changed. Causal: nothing looks across tokens that did not before. Cost: that of
`sharpen`; none once folded.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn

from unsmooth.remedies.base import remedy
from unsmooth.remedies.site import Site
from unsmooth.remedies.spectral import SpectralEdit


@remedy
class Smooth(SpectralEdit):
    """Keep the eigenvalues of H in [0, 1]."""

    name = "smooth"
    summary = "the eigenvalues of value times output weights are kept in [0, 1], so that tokens become alike"
    equation = "H = W_V W_O = VΛV⁻¹, Λ = diag(clip(ψ, 0, 1)); Schur form H = QTQᵀ, diag(T) = Λ"
    cost = "a few small products for all layers together and one per layer; none once folded"
    sign = 1

    def writes(self, site: Site) -> Iterable[nn.Parameter]:
        """The value weights, and the output's, which are computed from them."""
        return site.weights_at(site.wiring.weights.value, site.wiring.weights.output)
