r"""Sharpening (Dovonon, Bronstein & Kusner, "Setting the Record Straight on Transformer Oversmoothing", 2401.04301).

.. math:: H = W_V W_O = V\Lambda V^{-1}, \qquad \Lambda = \mathrm{diag}(\mathrm{clip}(\psi, -1, 0))

A layer :math:`X + AXH` has eigenvalues :math:`1 + \mu\lambda` with μ those of attention. With λ in [−1, 0) the part
that all tokens share (μ = 1) shrinks more than any other, so tokens do not become alike. Four bases:

- `"schur"` (default), :math:`H = QTQ^\top` with Q orthogonal and T upper triangular: every H with real eigenvalues has
  this form. They are the diagonal of T; the rest of T is free, unless `upper` caps it, so that ‖H‖₂ is reported.
- `"general"`, the paper's :math:`V\Lambda V^{-1}`, whose inverse is followed by Newton steps.
- `"orthogonal"`, :math:`V\Lambda V^\top`, and `"gram"`, :math:`-BB^\top`, where H is symmetric. The Gram form was the
  default until 0.1.0 and had all eigenvalues of a layer rescaled by one factor: `eigenvalues="rescale"`.

In the first two, eigenvalues in the interval do *not* bound the symmetric part of H, so that an H far from normal can
still raise similarity for many layers. The interval is kept for the summed H: query heads that share a value head
divide it among them. How the paper starts ψ and V is not known: `start="project"` stays near to the weights there are
(Schur the nearest, as it keeps more of them), `start="fresh"` takes a random orthonormal V and equal eigenvalues.
`limit` may be past 1, or None, to see what the cap does apart from the sign. Where a LayerScale γ ends the branch
(DINOv2, some of timm's), or a number multiplies it (Granite), H has that in it: W_O is what the form gives over γ, so
that the eigenvalues stay in the interval whatever the signs of γ and wherever training moves it. What
the choice of the basis does to accuracy in training from scratch is the claim `bases-compared` of `unsmooth evidence`:
there the general one does best, and the Schur form was not yet among them.

No neutral setting: every model is changed. Causal: nothing looks across tokens that did not before. Cost in training:
some matrix products of the size of the value weights for all layers together, and one (Schur) or two (general) per
layer; none once folded. The weights that it replaced are kept for `undo`. Under FSDP2 (shard block by block) layers are
gathered one by one instead.
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
    equation = "H = W_V W_O = VΛV⁻¹, Λ = diag(clip(ψ, −1, 0)); Schur form H = QTQᵀ, diag(T) = Λ"
    cost = "a few small products for all layers together and one per layer; none once folded"
    sign = -1

    def writes(self, site: Site) -> Iterable[nn.Parameter]:
        """The value weights, and the output's, which are computed from them."""
        return site.weights_at(site.wiring.weights.value, site.wiring.weights.output)
