"""Singular values are led to a slow decay that is chosen beforehand (spectrum control, Wang et al. 2020)."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import torch
from torch import Tensor

from unsmooth.losses._loss import loss
from unsmooth.losses._states import Positive, mean_where, states
from unsmooth.spec import Range

Decay: TypeAlias = Literal["exponential", "polynomial"]
Rate: TypeAlias = Annotated[float, Range(0.0)]


@loss(
    summary="singular values are led to a decay chosen beforehand",
    equation="mean over k of (σ_k/c − t_k)², t_k = exp(−ρ(k − 1)^γ) or k^−ρ, c the largest σ without gradient",
    paper="Wang et al. 2020, ICLR, “Improving neural language generation with spectrum control”",
    basis="reconstructed",
    cost="O(nd·min(n, d)): all singular values, in float64",
    degenerate="one token is one singular value, which is right; zero tokens give the mean of t²",
    unknown="the paper's constants, and the penalty in place of its factors U, Σ, V: rate, power and scale are options",
    capturable=False,
)
def spectrum(
    hidden_BND: Tensor,
    mask_BN: Tensor | None = None,
    *,
    decay: Decay = "exponential",
    rate: Rate = 0.01,
    power: Positive = 1.0,
    scale: Positive | None = None,
) -> Tensor:
    r"""Squared distance of the singular values to a prescribed decay.

    .. math:: \frac1K \sum_k \Big(\frac{\sigma_k}{c} - t_k\Big)^2, \qquad
              t_k = e^{-\rho (k-1)^\gamma} \;\text{or}\; k^{-\rho}

    In the paper a word embedding is trained as UΣVᵀ, with penalties that keep U and V orthogonal and Σ near the decay;
    here the weight stays as it is, and its singular values are asked for. `control_spectrum` fixes them instead. A
    weight is handed in as a matrix, such as ``spectrum(model.get_input_embeddings().weight)``.

    Args:
        hidden_BND: A matrix (rows, dim), or hidden states (batch, tokens, dim), each sequence a matrix.
        mask_BN: Boolean (batch, tokens), True = a real token.
        decay: "exponential" or "polynomial".
        rate: ρ: 0 asks for equal singular values.
        power: γ, of the exponential alone.
        scale: c. None takes the largest singular value, so that only the shape is asked for.

    Returns:
        A scalar. A sequence without real tokens does not count; without any that counts, the loss is 0.

    Example:
        >>> x = torch.diag(torch.tensor([2.0, 1.0]))
        >>> spectrum(x, decay="polynomial", rate=1.0)  # 2, 1 is 2 times 1, 1/2
        tensor(0.)
        >>> spectrum(x, rate=0.0)  # (0 + (1/2 - 1)²) / 2
        tensor(0.1250)
    """
    tokens = states(hidden_BND, mask_BN, at_least=1)
    values_BK, there_BK = tokens.singular_values_BK, tokens.has_singular_value_BK
    target_K = decay_of(values_BK.shape[-1], decay, rate, power).to(values_BK.device)
    if scale is None:
        largest_B1 = values_BK[:, :1].detach()
        values_BK = values_BK / torch.where(largest_B1 > 0, largest_B1, 1.0)
    else:
        values_BK = values_BK / scale
    squares_BK = torch.where(there_BK, (values_BK - target_K).square(), 0.0)
    values_B = squares_BK.sum(dim=-1) / there_BK.sum(dim=-1).clamp_min(1)
    return mean_where(values_B.to(tokens.dtype), tokens.count_B > 0)


def decay_of(count: int, decay: Decay, rate: float, power: float) -> Tensor:
    """T (count,), float64, from 1 down.

    >>> decay_of(3, "polynomial", 1.0, 1.0)
    tensor([1.0000, 0.5000, 0.3333], dtype=torch.float64)
    """
    places_K = torch.arange(count, dtype=torch.float64)
    if decay == "exponential":
        return torch.exp(-rate * places_K.pow(power))
    return (1.0 + places_K).pow(-rate)
