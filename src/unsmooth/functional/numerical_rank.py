"""Numerical rank: how many singular values are more than rounding noise."""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor

from unsmooth.functional._metric import metric
from unsmooth.functional._tokens import Tokens
from unsmooth.spec import Range


@metric(
    definition="number of singular values of X above ε‖X‖_F, ε the machine epsilon of the input's type",
    paper="Golub & Van Loan, Matrix Computations, 4th ed., section 5.4",
    cost="O(nd·min(n, d)), float64 SVD",
    chance=lambda n, d: min(n, float(d)),
    chance_note="min(n, d) for independent isotropic tokens",
    degenerate="single token 1; all-zero 0",
    differentiable=False,
    rises_when_alike=False,
    invariances=("permutation", "rotation", "scale", "reflection"),
)
def numerical_rank(
    x: Tensor | Tokens,
    mask: Tensor | None = None,
    *,
    tolerance: Annotated[float, Range(0.0, 1.0, below=True)] | None = None,
) -> Tensor:
    r"""Numerical rank of each sequence.

    .. math:: \#\{k : \sigma_k > \varepsilon \lVert X \rVert_F\}

    The default threshold follows the type in which `x` came, not the float64 of the computation: rounding the
    entries of a matrix to a type of machine epsilon ε moves no singular value by more than ½ε‖X‖_F (Weyl's
    inequality), so what lies below ε‖X‖_F may be made of rounding alone. numpy's max(n, d)·ε·σ₁ would reach
    σ₁ itself for bfloat16 (ε = 1/128) at 128 tokens. The rounding errors of the float64 SVD, for which
    numpy's rule is made, are a lower bound of the threshold: max(n, d)·ε₆₄·σ₁.

    Args:
        x: Token vectors (batch, tokens, dim).
        mask: Boolean (batch, tokens), True = a real token.
        tolerance: Count singular values above tolerance·σ₁ instead, 0 <= tolerance < 1.

    Returns:
        One whole number per sequence (batch,). A single token gives 1, an all-zero or empty sequence 0.
        Piecewise constant, so it has no useful gradient.

    Example:
        >>> x = torch.tensor([[[4.0, 0.0], [0.0, 1.0], [0.0, 0.0]]])  # singular values 4, 1
        >>> numerical_rank(x), numerical_rank(x, tolerance=0.5)
        (tensor([2.]), tensor([1.]))
    """
    tokens = Tokens.of(x, mask)
    singular = tokens.singular_values_BK
    threshold = _rounding_level(tokens) if tolerance is None else tolerance * singular[:, :1]
    rank = (singular > threshold).sum(dim=-1).to(tokens.dtype)
    # Comparing with NaN counts nothing; hand the NaN on instead of a rank of zero.
    return torch.where(singular[:, 0].isnan(), torch.nan, rank)


def _rounding_level(tokens: Tokens) -> Tensor:
    """The largest singular value that rounding could have made (batch, 1)."""
    singular = tokens.singular_values_BK
    stored = torch.finfo(tokens.input_BND.dtype).eps * torch.linalg.vector_norm(singular, dim=-1, keepdim=True)
    longest = tokens.count_B.clamp_min(float(tokens.dim)).unsqueeze(-1)
    return torch.maximum(stored, longest * torch.finfo(torch.float64).eps * singular[:, :1])
