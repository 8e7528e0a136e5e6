"""Vectors are spread out: a contrastive loss without positives (Wang & He 2025, "Diffuse and disperse")."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from unsmooth.errors import expected
from unsmooth.functional import Tokens
from unsmooth.functional._pairs import over_rows
from unsmooth.losses._loss import loss
from unsmooth.losses._states import Positive, mean_of, mean_where, states, unit

# Where −∞ would stand: a row in which nothing is left would have no gradient.
_NOTHING = torch.finfo(torch.float64).min / 4


@loss(
    summary="vectors are pushed apart, as negatives are in a contrastive loss",
    equation="log of the mean over i, j of exp(−‖x_i − x_j‖²/(dτ))",
    paper="Wang & He 2025, arXiv 2506.09027; github.com/raywang4/DispLoss",
    basis="code",
    cost="O(n²d) in each sequence, a slice of rows at a time; covariance O(nd·min(n, d)); O(B²nd) over sequences",
    degenerate="refused for a single vector; a set with fewer than two does not count",
    unknown="scaling in the forms other than l2: distances by d in hinge, unit vectors in covariance",
)
def dispersion(
    hidden_BND: Tensor,
    mask_BN: Tensor | None = None,
    *,
    form: Literal["l2", "cosine", "hinge", "covariance"] = "l2",
    of: Literal["tokens", "sequences", "means"] = "tokens",
    temperature: Positive = 1.0,
    margin: Positive = 1.0,
    with_self: bool = True,
) -> Tensor:
    r"""How close the vectors of a set are to each other.

    .. math:: \text{l2, cosine:}\; \log \frac{1}{n^2} \sum_{i,j} e^{-D_{ij}/\tau}, \qquad
              \text{hinge:}\; \frac{1}{n^2} \sum_{i,j} \max(0, \epsilon - D_{ij})^2, \qquad
              \text{covariance:}\; \sum_{k \ne l} C_{kl}^2

    with D the squared distance divided by the number of dimensions, as in the authors' code, or minus the cosine; and
    C the covariance of unit vectors over the set.

    Args:
        hidden_BND: Hidden states (batch, tokens, dim), or a matrix (rows, dim), whose rows are one set.
        mask_BN: Boolean (batch, tokens), True = a real token.
        form: "l2", "cosine", "hinge" or "covariance".
        of: What is spread. "tokens": those of each sequence, averaged over sequences. "sequences": each as one long
            vector, as the paper does with images; not with a mask. "means": the mean of each sequence's tokens.
        temperature: τ of "l2" and "cosine"; the authors' code for "l2" has 1.
        margin: ε of "hinge".
        with_self: Whether pairs i = j are in the mean, as in the authors' code.

    Returns:
        A scalar; 0 in the form "l2" where all are equal, and lower the more they differ.

    Example:
        >>> x = torch.tensor([[[0.0], [1.0]]])
        >>> dispersion(x)  # log((2 + 2·exp(-1)) / 4)
        tensor(-0.3799)
        >>> dispersion(x, form="hinge", with_self=False, margin=3.0)  # (3 - 1)²
        tensor(4.)
    """
    kept = _set_of(hidden_BND, mask_BN, of)
    x_BND, mask_BN, count_B = kept.values_BND.double(), kept.mask_BN, kept.count_B.double()
    if form == "covariance":
        values_B = _covariance(unit(x_BND), mask_BN, count_B)
    else:
        pairs_B = count_B.square() if with_self else count_B * (count_B - 1.0)
        rows_BN = _rows(x_BND, mask_BN, count_B, form, temperature, margin, with_self)
        if form == "hinge":
            values_B = rows_BN.sum(dim=-1) / pairs_B.clamp_min(1.0)
        else:
            values_B = torch.logsumexp(rows_BN, dim=-1) - pairs_B.clamp_min(1.0).log()
    return mean_where(values_B, count_B >= 2.0).to(torch.promote_types(hidden_BND.dtype, torch.float32))


def _set_of(hidden: Tensor, mask: Tensor | None, of: str) -> Tokens:
    """The vectors that are compared, as tokens: of each sequence, or one for each sequence."""
    if of == "tokens":
        return states(hidden, mask)
    whole = states(hidden, mask, at_least=1)
    if len(whole.input_BND) < 2:
        raise expected("at least two sequences to compare", len(whole.input_BND), 'a larger batch, or of="tokens"')
    if of == "sequences":
        if mask is not None:
            raise expected("sequences of one length, without a mask", "a mask", 'of="means"')
        return Tokens(whole.input_BND.flatten(1).unsqueeze(0))
    return Tokens(mean_of(whole).unsqueeze(0), (whole.count_B > 0).unsqueeze(0))


def _rows(
    x_BND: Tensor,
    mask_BN: Tensor | None,
    count_B: Tensor,
    form: str,
    scale: float,
    margin: float,
    with_self: bool,
) -> Tensor:
    """Of each token: the logarithm of its sum over the others, or for "hinge" the sum itself (B, N)."""
    if form == "cosine":
        x_BND = unit(x_BND)
    else:
        # Distances are the same, and near collapse the squares are small: then nothing cancels.
        mean_BD = x_BND.sum(dim=1) / count_B.clamp_min(1.0).unsqueeze(-1)
        x_BND = (x_BND - mean_BD.unsqueeze(1)) / math.sqrt(x_BND.shape[-1])
    squares_BN = x_BND.square().sum(dim=-1)
    places_N = torch.arange(x_BND.shape[1], device=x_BND.device)

    def of_rows(products_BRN: Tensor, rows: slice) -> Tensor:
        itself_RN = places_N[rows, None] == places_N
        if form == "cosine":
            distances_BRN = -products_BRN
        else:
            distances_BRN = squares_BN[:, rows, None] + squares_BN[:, None] - 2.0 * products_BRN
            distances_BRN = distances_BRN.clamp_min(0.0).masked_fill(itself_RN, 0.0)
        left_out = torch.zeros_like(itself_RN) if with_self else itself_RN
        if mask_BN is not None:
            left_out = left_out | ~(mask_BN[:, rows, None] & mask_BN[:, None])
        if form == "hinge":
            return (margin - distances_BRN).clamp_min(0.0).square().masked_fill(left_out, 0.0).sum(dim=-1)
        return torch.logsumexp((-distances_BRN / scale).masked_fill(left_out, _NOTHING), dim=-1)

    return over_rows(x_BND, of_rows)


def _covariance(unit_BND: Tensor, mask_BN: Tensor | None, count_B: Tensor) -> Tensor:
    """Σ_{k≠l} C_kl²: all squares, which the n×n products have the same sum of, less the squared variances."""
    count_B1 = count_B.clamp_min(1.0).unsqueeze(-1)
    centred_BND = unit_BND - (unit_BND.sum(dim=1) / count_B1).unsqueeze(1)
    if mask_BN is not None:
        centred_BND = centred_BND.masked_fill(~mask_BN.unsqueeze(-1), 0.0)
    # The smaller of the two: it is never larger than the vectors themselves, many words or many dimensions.
    short_BKL = centred_BND if centred_BND.shape[1] < centred_BND.shape[2] else centred_BND.mT
    all_B = (short_BKL @ short_BKL.mT).square().sum(dim=(1, 2))
    variances_BD = centred_BND.square().sum(dim=1) / count_B1
    return all_B / count_B1.squeeze(-1).square() - variances_BD.square().sum(dim=-1)
