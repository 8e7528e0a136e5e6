r"""ReZero (Bachlechner et al. 2020, arXiv 2003.04887): every layer starts as the identity, and there are no norms.

.. math:: x \leftarrow x + \alpha f(x), \qquad \alpha = 0 \text{ at the start, learned}

The paper has "a single additional learned parameter per layer", and its code one α for both branches of a layer, so
`share` is True by default; one per branch is `skipinit`. The norms of the blocks are dropped; those before the first
and after the last block are not the blocks', and stay. α=0 also means that a trained model forgets what it knows:
ReZero is made for training from the start, and ``start=1.0, norm="keep"`` adds a learned factor to a trained one.

Neutral at ``start=1.0, norm="keep"``. Only for blocks without cross-attention, which would be left as it is. Causal:
nothing looks across tokens. Cost: one multiplication per branch, less two norms.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from unsmooth.remedies.base import remedy
from unsmooth.remedies.learned_scale import LearnedScale, Norm, Start
from unsmooth.remedies.site import Site


@remedy
class ReZero(LearnedScale):
    """Multiply both branches by a learned number that starts at zero, without norms.

    Example:
        >>> import torch, unsmooth
        >>> layer = torch.nn.TransformerEncoderLayer(4, nhead=2, batch_first=True)
        >>> model = torch.nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        >>> x_BND = torch.tensor([[[1.0, 2.0, 3.0, 4.0], [0.0, 5.0, 0.0, 5.0]]])
        >>> torch.equal(unsmooth.apply(model, "rezero")(x_BND), x_BND)  # the identity, at the start
        True
    """

    name = "rezero"
    summary = "branches are multiplied by a learned number that starts at zero; norms are dropped"
    paper = "Bachlechner et al. 2020, arXiv 2003.04887"
    options: ClassVar[Mapping[str, str]] = {
        **LearnedScale.options,
        "share": "True for one α per layer (paper and official code), False for one per branch",
    }

    def __init__(self, site: Site, *, start: Start = 0.0, norm: Norm = "drop", share: bool = True) -> None:
        super().__init__(site, start, norm, share)
