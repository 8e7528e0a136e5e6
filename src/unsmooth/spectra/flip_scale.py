"""The scale of the stream at which a pre-norm layer's verdict turns."""

from __future__ import annotations

import torch
from torch import Tensor

from unsmooth.errors import expected


def flip_scale(eigenvalues: Tensor, smallest_token_eigenvalue: float = 0.0) -> float | None:
    r"""The σ above which the token mean no longer dominates.

    A norm before the branch divides every λ by σ. For one λ and attention with real eigenvalues from m to 1, the
    mode of equal tokens dominates iff 2 Re(λ)/σ + (1 + m)\|λ\|²/σ² >= 0: λ/σ lies outside the disc with centre
    −1/(1 + m) that touches 0. The layer counts as smoothing where that holds for some λ: below

    .. math:: \sigma = \max_j \frac{(1 + m) |\lambda_j|^2}{-2 \operatorname{Re} \lambda_j}

    With m = 0, attention that averages all tokens, this is exact for all λ together. Zero eigenvalues are left out.

    Args:
        eigenvalues: λ, real or complex, of any shape, before the division by σ.
        smallest_token_eigenvalue: m in [−1, 1], the attention's smallest eigenvalue.

    Returns:
        σ: smoothing below, not above. None where the verdict never turns: some λ with Re λ >= 0 smooths at every
        scale, and where all λ are zero nothing ever grows. 0 for m = −1, where no scale smooths.

    Example:
        >>> flip_scale(torch.tensor([-4.0, -1.0]))  # |1 - 4/σ| > 1 below σ = 2
        2.0
        >>> flip_scale(torch.tensor([-4.0, 0.1])) is None
        True
    """
    if not -1.0 <= smallest_token_eigenvalue <= 1.0:
        raise expected("`smallest_token_eigenvalue` in [-1, 1]", smallest_token_eigenvalue, "0 for averaging attention")
    values = eigenvalues.detach().flatten().to("cpu", torch.complex128)
    if not bool(torch.isfinite(values.abs()).all()):
        raise expected("finite eigenvalues", "NaN or infinite ones", "looking at the weights they come from")
    if values.numel() == 0 or float(values.abs().max()) == 0.0:
        return None
    # What rounding leaves of a zero eigenvalue would have a sign of its own.
    rounding = 1e-12 * float(values.abs().max())
    values = values[values.abs() > rounding]
    if bool((values.real >= -rounding).any()):
        return None
    return float(((1.0 + smallest_token_eigenvalue) * values.abs().square() / (-2.0 * values.real)).max())
