r"""Sharpening (Dovonon, Bronstein & Kusner, "Setting the Record Straight on Transformer Oversmoothing", 2401.04301).

.. math:: H = W_V W_O = V\Lambda V^{-1}, \qquad \Lambda = \mathrm{diag}(\mathrm{clip}(\psi, -1, 0))

A layer :math:`X + AXH` has eigenvalues :math:`1 + \mu\lambda` with μ those of attention. With λ in [−1, 0) the part
that all tokens share (μ = 1) shrinks more than any other, so tokens do not become alike. Three bases: `"gram"`,
:math:`H = -s^2BB^\top`, which covers every symmetric H with that spectrum and needs no factorisation (default);
`"orthogonal"`, :math:`V\Lambda V^\top`; `"general"`, the paper's, where eigenvalues in the interval do *not* bound the
symmetric part of H, so that a badly conditioned V can still raise similarity for many layers. The interval is kept for
the summed H: query heads that share a value head divide it among them. How the paper starts ψ and V is not known:
`start="project"` stays as near to the weights there are as the interval allows, `start="fresh"` takes a random
orthonormal V and equal eigenvalues. Where a LayerScale γ ends the branch (DINOv2, some of timm's), H is meant before
it: a symmetric H keeps the signs of its eigenvalues behind any γ > 0. What the choice of the basis does to accuracy in
training from scratch is the claim `bases-compared` of `unsmooth evidence`: there the general one does best.

No neutral setting: every model is changed. Causal: nothing looks across tokens that did not before. Cost in training:
a power step (Gram) or two Newton-Schulz steps (orthogonal) for all layers together, or an inverse per layer (general),
and one scaling of a weight per layer; none once folded. The weights that it replaced are kept for `undo`. Under FSDP2
(shard block by block) layers are gathered one by one instead.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn

from unsmooth.remedies.base import remedy
from unsmooth.remedies.site import Site
from unsmooth.remedies.spectral import SpectralEdit


@remedy
class Sharpen(SpectralEdit):
    """Keep the eigenvalues of H in [−1, 0].

    >>> from torch import nn
    >>> import unsmooth.remedies
    >>> from unsmooth.models.value_projection import value_projection
    >>> layer = nn.TransformerEncoderLayer(4, nhead=2, batch_first=True)
    >>> model = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
    >>> model = unsmooth.remedies.apply(model, "sharpen", start="fresh", size=0.25)
    >>> value_projection(model, 0).summed().diag()  # -¼VVᵀ, and here V has as many columns as rows
    tensor([-0.2500, -0.2500, -0.2500, -0.2500])
    """

    name = "sharpen"
    summary = "the eigenvalues of value times output weights are kept in [−1, 0], so that tokens stay apart"
    equation = "H = W_V W_O = VΛV⁻¹, Λ = diag(clip(ψ, −1, 0)); Gram form H = −s²BBᵀ, s² = min(1, 1/σ₁(B)²)"
    cost = "a few small kernels for all layers together and one per layer; none once folded"
    sign = -1

    def writes(self, site: Site) -> Iterable[nn.Parameter]:
        """The value weights, and the output's, which are computed from them."""
        return site.weights_at(site.wiring.value, site.wiring.output)
