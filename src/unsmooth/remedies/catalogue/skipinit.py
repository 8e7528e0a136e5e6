r"""SkipInit (De & Smith 2020, arXiv 2002.10444): a learned number at the end of each branch, zero at the start.

.. math:: x \leftarrow x + \alpha f(x), \qquad \alpha = 0 \text{ at the start, learned, one for each branch}

The paper is about residual networks with batch norm: a norm makes branches of order one beside a stream that grows
with depth, so that deep blocks start near the identity, and a small α does so without the norm. It has one α for every
branch, and here that is all in which it differs from `rezero`, which has one for the two branches of a layer; the code
is shared. The paper also looks at a start of :math:`1/\sqrt{d}` for d branches, which is `start`. It drops the norms
that it stands in for; a Transformer of ours may keep them, ``norm="keep"``. Norms before the first and after the last
block are not the blocks', and stay.

Neutral at ``start=1.0, norm="keep"``. Only for blocks without cross-attention, which would be left as it is. Causal:
nothing looks across tokens. Cost: one multiplication per branch, less two norms.
"""

from __future__ import annotations

from unsmooth.remedies.base import remedy
from unsmooth.remedies.learned_scale import LearnedScale, Norm, Start
from unsmooth.remedies.site import Site


@remedy
class SkipInit(LearnedScale):
    """Multiply each branch by a learned number of its own that starts at zero, without norms.

    Example:
        >>> import torch, unsmooth
        >>> layer = torch.nn.TransformerEncoderLayer(4, nhead=2, batch_first=True)
        >>> model = torch.nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        >>> x_BND = torch.tensor([[[1.0, 2.0, 3.0, 4.0], [0.0, 5.0, 0.0, 5.0]]])
        >>> torch.equal(unsmooth.apply(model, "skipinit")(x_BND), x_BND)  # the identity, at the start
        True
        >>> model.layers[0].unsmooth.skipinit.alpha.tolist()  # attention's and the MLP's
        [0.0, 0.0]
    """

    name = "skipinit"
    summary = "each branch is multiplied by a learned number of its own that starts at zero; norms are dropped"
    paper = "De & Smith 2020, arXiv 2002.10444"

    def __init__(self, site: Site, *, start: Start = 0.0, norm: Norm = "drop") -> None:
        super().__init__(site, start, norm, share=False)
