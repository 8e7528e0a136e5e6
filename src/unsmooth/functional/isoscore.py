"""IsoScore: how evenly the tokens spread over all dimensions."""

from __future__ import annotations

import torch
from torch import Tensor

from unsmooth.functional._metric import metric
from unsmooth.functional._tokens import Tokens
from unsmooth.functional.participation_ratio import participation_of


def _chance(n: float, d: int) -> float:
    """The expected participation ratio put into the definition."""
    return max(0.0, n - 2.0) / (n + d) if d > 1 else float(n > 1.0)


@metric(
    definition="(PR − 1)/(d − 1), PR = tr(C)²/tr(C²), C the covariance of the tokens",
    paper="Rudman et al. 2022 (arXiv 2108.07344)",
    cost="O(nd·min(n, d))",
    chance=_chance,
    chance_note="approximately (n − 2)/(n + d) for independent isotropic tokens",
    degenerate="single token 0 (no variance); all-zero 0; equal tokens 0",
    invariances=("permutation", "rotation", "scale", "translation", "reflection"),
)
def isoscore(x: Tensor | Tokens, mask: Tensor | None = None) -> Tensor:
    r"""IsoScore of each sequence: 0 if all variance lies in one direction, 1 if it is the same in all.

    .. math:: \frac{\mathrm{PR} - 1}{d - 1}, \qquad
              \mathrm{PR} = \frac{(\operatorname{tr} C)^2}{\operatorname{tr} C^2}

    The published procedure (Rudman et al. 2022, arXiv 2108.07344: principal components, normalised diagonal,
    isotropy defect, rescaling) reduces to this closed form.

    Args:
        x: Token vectors (batch, tokens, dim).
        mask: Boolean (batch, tokens), True = a real token.

    Returns:
        One value in [0, 1] per sequence (batch,). Tokens without variance give 0: a single token, equal
        tokens, an all-zero or empty sequence. One dimension with variance gives 1.

    Example:
        >>> isoscore(torch.tensor([[[3.0, 0.0], [-3.0, 0.0], [0.0, 3.0], [0.0, -3.0]]]))
        tensor([1.])
        >>> isoscore(torch.tensor([[[3.0, 0.0], [-3.0, 0.0], [0.0, 1.0], [0.0, -1.0]]]))  # PR = 400/328
        tensor([0.2195])
    """
    tokens = Tokens.of(x, mask)
    participation = participation_of(tokens.centred_BND)
    # With one dimension PR is 1 or 0, and so is the score.
    score = (participation - 1.0) / (tokens.dim - 1.0) if tokens.dim > 1 else participation
    return torch.where(participation == 0, 0.0, score).to(tokens.dtype)
