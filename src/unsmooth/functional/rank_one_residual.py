"""Relative residual: how far X is from all tokens being one vector."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from unsmooth.functional._metric import metric
from unsmooth.functional._ratios import diversity_of, ratio, root
from unsmooth.functional._tokens import Tokens

Centre = Literal["mean", "argmin"]
Norm = Literal["composite", "frobenius"]
_STEPS = 100


@metric(
    definition="‖X − 1x̄ᵀ‖/‖X‖ in the norm √(‖·‖₁‖·‖_∞), x̄ the token mean",
    paper="Dong et al. 2021 (arXiv 2103.03404)",
    cost="O(nd); centre='argmin' a hundred times that",
    chance=lambda n, d: (1.0 - 1.0 / max(n, 1.0)) ** 0.5,
    chance_note="approximately √(1 − 1/n) for independent isotropic tokens",
    degenerate="single token 0; all-zero 0",
    default=True,
    rises_when_alike=False,
    invariances=("permutation", "scale", "reflection"),
)
def rank_one_residual(
    x: Tensor | Tokens, mask: Tensor | None = None, *, norm: Norm = "composite", centre: Centre = "mean"
) -> Tensor:
    r"""Norm of what is left of each sequence without its token mean, relative to the norm of the sequence.

    .. math:: \frac{\lVert X - 1 \bar x^\top \rVert_{1,\infty}}{\lVert X \rVert_{1,\infty}}, \qquad
              \lVert M \rVert_{1,\infty} = \sqrt{\lVert M \rVert_1 \, \lVert M \rVert_\infty}

    with the largest absolute column sum ‖M‖₁ and row sum ‖M‖_∞ (Dong et al. 2021, arXiv 2103.03404). They
    take the vector that minimises the residual, which in the Frobenius norm is the token mean. In the composite norm it
    is another one, that has no closed form: residuals from the mean are a few to some tens of per cent larger. The
    composite norm depends on the feature axes, and from the mean the value may exceed 1.

    Args:
        x: Token vectors (batch, tokens, dim).
        mask: Boolean (batch, tokens), True = a real token.
        norm: "composite" as above, or "frobenius", which gives √(1 − t_sim).
        centre: "mean" for the token mean, or "argmin" for the vector that makes the residual least in this norm: in the
            composite one as found by descent from the mean, to 0.1 % of the residual. Gradients hold that vector fixed.

    Returns:
        One value per sequence (batch,). A single token and an all-zero or empty sequence give 0.

    Example:
        >>> import torch
        >>> x = torch.tensor([[[1.0, 2.0], [1.0, -2.0]]])
        >>> rank_one_residual(x)  # largest column and row sum 4, 2 without (1, 0), else 4, 3: sqrt(8 / 12)
        tensor([0.8165])
        >>> rank_one_residual(x, norm="frobenius")  # sqrt(8 / 10)
        tensor([0.8944])
        >>> x = torch.tensor([[[0.0], [0.0], [3.0]]])  # columns: 1 + 1 + 2 from the mean, 3 from 0; rows: 2, 3
        >>> round(float(rank_one_residual(x)), 3)  # sqrt(8 / 9)
        0.943
        >>> round(float(rank_one_residual(x, centre="argmin")), 3)  # from 1.5: sqrt(4.5 · 1.5 / 9)
        0.866
    """
    tokens = Tokens.of(x, mask)
    if norm == "frobenius":
        return root(diversity_of(tokens.mean_energy_B, tokens.centred_energy_B, squared=True)).to(tokens.dtype)
    columns_BD, rows_BN = tokens.centred_absolute_columns_BD, tokens.centred_absolute_rows_BN
    if centre == "argmin":
        rest_BND = (tokens.centred_BND - _least(tokens).unsqueeze(1)).abs()
        rest_BND = rest_BND if tokens.mask_BN is None else rest_BND * tokens.mask_BN.unsqueeze(-1)
        columns_BD, rows_BN = rest_BND.sum(dim=1), rest_BND.sum(dim=-1)
    columns = _largest(columns_BD, tokens.absolute_columns_BD)
    return root(columns * _largest(rows_BN, tokens.absolute_rows_BN)).to(tokens.dtype)


def _largest(rest_BK: Tensor, whole_BK: Tensor) -> Tensor:
    """Quotient of the largest sums; zero rows at padding do not change them."""
    return ratio(rest_BK.amax(dim=-1), whole_BK.amax(dim=-1), otherwise=0.0)


@torch.no_grad()
def _least(tokens: Tokens) -> Tensor:
    """The vector (B, D), from the token mean, that makes the composite norm of the rest least.

    Descent on the logarithm of the squared norm, in which powers of sums stand for their largest and √(r² + ε²) for
    |r|: ever higher powers, ever smaller ε and steps. The best vector on the way is kept, so that the result is never
    worse than the mean.
    """
    rest_BND = tokens.centred_BND
    size_B11 = rest_BND.abs().amax(dim=(1, 2), keepdim=True)
    unit_BND = torch.where(size_B11 > 0, rest_BND / size_B11, 0.0)
    real_BN1 = torch.ones_like(unit_BND[..., :1]) if tokens.mask_BN is None else tokens.mask_BN.unsqueeze(-1)
    centre_B1D = best_B1D = momentum = square = torch.zeros_like(unit_BND[:, :1])
    least_B11 = torch.full_like(size_B11, torch.inf)
    for step in range(_STEPS):
        done = step / _STEPS
        power, softness, rate = 10.0 * 100.0**done, 0.1 * 1e-3**done, 0.1 * 1e-3**done
        distance_BND = (unit_BND - centre_B1D) * real_BN1
        columns_B1D = distance_BND.abs().sum(dim=1, keepdim=True)
        rows_BN1 = distance_BND.abs().sum(dim=2, keepdim=True)
        product_B11 = columns_B1D.amax(dim=2, keepdim=True) * rows_BN1.amax(dim=1, keepdim=True)
        better_B11 = product_B11 < least_B11
        least_B11 = torch.where(better_B11, product_B11, least_B11)
        best_B1D = torch.where(better_B11, centre_B1D, best_B1D)
        weights_BND = _share_of_largest(columns_B1D, 2, power) + _share_of_largest(rows_BN1, 1, power)
        slope_B1D = -(weights_BND * distance_BND / (distance_BND.square() + softness**2).sqrt()).sum(
            dim=1, keepdim=True
        )
        # Adam's steps, in one length for all features of a sequence.
        momentum, square = 0.9 * momentum + 0.1 * slope_B1D, 0.99 * square + 0.01 * slope_B1D.square()
        length_B11 = (square / (1.0 - 0.99 ** (step + 1))).mean(dim=2, keepdim=True).sqrt()
        move_B1D = momentum / (1.0 - 0.9 ** (step + 1))
        centre_B1D = centre_B1D - rate * torch.where(length_B11 > 0, move_B1D / length_B11, 0.0)
    return (best_B1D * size_B11).squeeze(1)


def _share_of_largest(sums: Tensor, dim: int, power: float) -> Tensor:
    """Gradient of log max, the maximum taken as a power mean, with respect to each sum."""
    high = sums.amax(dim=dim, keepdim=True)
    raised = torch.where(high > 0, sums / high, 0.0) ** power
    share = raised / raised.sum(dim=dim, keepdim=True).clamp_min(1.0)
    return torch.where(sums > 0, share / sums, 0.0)
