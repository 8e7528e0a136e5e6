"""Dominance of a whole multi-head layer, exactly where heads do not decouple."""

from __future__ import annotations

import numpy
import torch
from scipy.sparse.linalg import ArpackError, LinearOperator, eigs
from torch import Tensor

from unsmooth.functional import mean_cosine
from unsmooth.spectra._krylov import arnoldi, start_vector
from unsmooth.spectra.layer_operator import LayerOperator, mean_zero_basis
from unsmooth.spectra.summed import extreme_modulus
from unsmooth.spectra.verdict import Dominance, log_ratio, verdict_of

# Largest (n − 1)d whose matrix is formed and decomposed.
SMALL = 400
# Products of a first look, and the residuals that its growth factor is taken to be off by.
STEPS, CAUTION = 40, 1.5
# Vectors that a restarted iteration keeps, and its restarts.
BASIS, RESTARTS = 24, 12


def layer_dominance(
    maps_HNN: Tensor,
    w_v_HDK: Tensor,
    w_o_HKD: Tensor,
    *,
    left: Tensor | None = None,
    right: Tensor | None = None,
    token_scale: Tensor | None = None,
    allow_unnormalised: bool = False,
    accurate: bool = False,
    tolerance: float = 1e-3,
) -> Dominance:
    r"""Dominance of X ← (X + Σ_h A_h X H_h) R with all heads together.

    On equal tokens the layer is I + Σ_h H_h; on the rest it is X̃ ↦ X̃ + Σ_h (I − Π) A_h X̃ H_h, and its spectrum is the
    union of both. Heads that each smooth may sharpen together, so no rule on single heads stands in for this one.
    It goes beyond P1 (arXiv 2401.04301), which has one head. Large layers are never formed: the rest goes through
    40 steps of Arnoldi on n·d numbers, and where these leave the verdict in doubt through a restarted iteration.

    Args:
        maps_HNN: Attention (heads, n, n).
        w_v_HDK: Value weights (heads, d, d_h).
        w_o_HKD: Output weights (heads, d_h, d).
        left: (d, d) of a norm before the branch, see `LayerOperator`.
        right: (d, d) of a norm after the addition.
        token_scale: (n,) scales that are one per token, see `LayerOperator` for what they break.
        allow_unnormalised: Take scales that differ and maps whose rows do not sum to one.
        accurate: Restart until `rest_modulus` is right to `tolerance`, even where the verdict is clear before.
        tolerance: Relative accuracy of `rest_modulus` that the restarted iteration stops at.

    Returns:
        `feature_eigenvalue` is the dominating growth factor minus 1, `token_eigenvalue` 1 where the mean dominates
        and None elsewhere, `mode_cosine` the mean cosine of the dominating mode's tokens. `route` says how the rest
        was found: "dense", "arnoldi", or "ritz" for the first steps' estimate, a few per cent of `rest_modulus` − 1
        off, which also stands where restarts do not settle.

    Example:
        >>> maps = torch.full((1, 2, 2), 0.5)  # averages: nothing of the rest is left
        >>> found = layer_dominance(maps, torch.eye(2)[None], -0.5 * torch.eye(2)[None])
        >>> found.mean_modulus, round(found.rest_modulus, 12), found.verdict
        (0.5, 1.0, 'sharpening')
    """
    layer = LayerOperator(maps_HNN, w_v_HDK, w_o_HKD, left, right, token_scale, allow_unnormalised)
    mean, growth = extreme_modulus(layer.mean_matrix(), shift=0.0)
    rest_growth, mode_ND, route = _rest(layer, mean, tolerance, accurate)
    rest = abs(rest_growth)
    by_mean = mean >= rest
    return Dominance(
        mean_modulus=mean,
        rest_modulus=rest,
        margin=log_ratio(mean, rest),
        verdict=verdict_of(mean, rest),
        feature_eigenvalue=(growth if by_mean else rest_growth) - 1.0,
        token_eigenvalue=1.0 + 0.0j if by_mean else None,
        mode_cosine=1.0 if by_mean else _mode_cosine(mode_ND),
        route=route,
    )


def _rest(layer: LayerOperator, mean: float, tolerance: float, accurate: bool) -> tuple[complex, Tensor, str]:
    """The rest's growth factor of largest modulus, its mode (n, d), and how it was found."""
    if (layer.tokens - 1) * layer.dim <= SMALL:
        return _dense_rest(layer)
    folded = layer.to(torch.float32)
    growth, mode_ND, error = _ritz_rest(folded)
    ends = [verdict_of(mean, max(abs(growth) + sign * error, 0.0)) for sign in (-1.0, 1.0)]
    settled = error <= tolerance * abs(growth) if accurate else ends[0] == ends[1]
    found = None if settled else _restarted_rest(folded, mode_ND, tolerance)
    return (growth, mode_ND, "ritz") if found is None else (*found, "arnoldi")


def _restarted_rest(folded: LayerOperator, mode_ND: Tensor, tolerance: float) -> tuple[complex, Tensor] | None:
    """Implicitly restarted Arnoldi from an estimate of the mode; None where it does not settle."""
    n, d = folded.tokens, folded.dim
    device = folded.w_v.device

    def apply(x: numpy.ndarray) -> numpy.ndarray:
        moved = folded.rest(torch.from_numpy(x.astype(numpy.float32)).to(device).reshape(n, d))
        return moved.cpu().numpy().reshape(-1)

    # A little of everything beside the estimate, which may have missed what dominates.
    start = (mode_ND.real + mode_ND.imag).float() + 0.1 * _start(n, d)
    operator = LinearOperator((n * d, n * d), matvec=apply, dtype=numpy.float32)
    options = {"v0": start.numpy().reshape(-1), "ncv": BASIS, "tol": tolerance, "maxiter": RESTARTS}
    try:
        values, vectors = eigs(operator, k=1, which="LM", **options)
    except ArpackError:
        return None
    return complex(values[0]), torch.from_numpy(vectors[:, 0]).reshape(n, d)


def _dense_rest(layer: LayerOperator) -> tuple[complex, Tensor, str]:
    n, d = layer.tokens, layer.dim
    values, vectors = torch.linalg.eig(layer.rest_matrix().mT.cpu())
    best = int(values.abs().argmax())
    return complex(values[best]), mean_zero_basis(n).to(vectors.dtype) @ vectors[:, best].reshape(n - 1, d), "dense"


def _ritz_rest(folded: LayerOperator) -> tuple[complex, Tensor, float]:
    """The outermost Ritz value of one run, its mode (n, d), and what it may be off by."""
    n, d = folded.tokens, folded.dim
    start = _start(n, d).to(folded.w_v).reshape(1, -1)
    krylov = arnoldi(lambda x: folded.rest(x.reshape(n, d)).reshape(1, -1), start, STEPS)
    values = krylov.ritz_values()[0]
    best = values[values.abs().argmax()]
    residual, coordinates = krylov.ritz_residuals(best[None])
    mode = coordinates[0].to(torch.complex64) @ krylov.basis[0, :-1].to("cpu", torch.complex64)
    return complex(best), mode.reshape(n, d), CAUTION * float(residual[0])


def _start(n: int, d: int) -> Tensor:
    """Tokens of mean zero, the same every time (n, d), of length one."""
    x_ND = start_vector(n * d, torch.zeros((), dtype=torch.float32)).reshape(n, d)
    x_ND = x_ND - x_ND.mean(dim=0)
    unit: Tensor = x_ND / x_ND.norm()
    return unit


def _mode_cosine(mode_ND: Tensor) -> float:
    """Mean pairwise cosine of a mode's tokens; real and imaginary parts side by side average over its phases."""
    parts = torch.view_as_real(mode_ND.to(torch.complex128)).flatten(1)
    return float(mean_cosine(parts[None]))
