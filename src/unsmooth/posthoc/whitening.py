"""Embeddings are turned and scaled until their covariance is the identity (Su et al. 2021)."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from unsmooth.errors import expected
from unsmooth.numbers import is_number
from unsmooth.posthoc.arrays import Array, like, matrix_of
from unsmooth.posthoc.estimator import Estimator, estimator, whole
from unsmooth.posthoc.principal import more_than_rounding, principal


@estimator
class Whitening(Estimator):
    r"""Mean zero and covariance one in the directions that are kept.

    .. math:: x \mapsto (x - \mu)\, U_k \Lambda_k^{-1/2}, \qquad C = U \Lambda U^T

    with the covariance C of the samples over n − 1, as ``numpy.cov`` has it, and its k largest eigenvalues.

    Source: Su et al. 2021 (arXiv 2103.15316; github.com/bojone/BERT-whitening).

    Args:
        dimensions: k, the directions that are kept, those of the largest variance. None keeps all of them.
        shrinkage: From 0 to 1: C becomes (1 − s)C + s·tr(C)/d·I. With s > 0 there is something to divide by in every
            direction, also with fewer samples than dimensions, and directions of small variance are amplified less.

    With fewer samples than dimensions there are directions in which the samples do not vary at all. Without shrinkage
    these cannot be whitened, and `fit` says how many can.

    Example:
        >>> import torch
        >>> x = torch.tensor([[2.0, 1.0], [-2.0, 1.0], [0.0, 2.0], [0.0, 0.0]])
        >>> z = Whitening().fit_transform(x)
        >>> torch.cov(z.mT).abs().round(decimals=4)
        tensor([[1., 0.],
                [0., 1.]])
    """

    name = "whitening"
    summary = "embeddings are turned and scaled until their covariance is the identity"
    equation = "x ← (x − μ) U_k Λ_k^(−1/2), C = U Λ Uᵀ"
    paper = "Su et al. 2021, arXiv 2103.15316"
    learned = ("mean_", "directions_", "variances_")

    mean_: Tensor
    directions_: Tensor
    variances_: Tensor

    def __init__(self, dimensions: int | None = None, shrinkage: float = 0.0) -> None:
        self.dimensions = dimensions
        self.shrinkage = shrinkage

    def _fit(self, x_ND: Tensor) -> None:
        samples, all_of_them = x_ND.shape
        kept = all_of_them if self.dimensions is None else whole("dimensions", self.dimensions, None, 1, all_of_them)
        if not is_number(self.shrinkage) or not 0.0 <= self.shrinkage <= 1.0:
            raise expected("shrinkage from 0 to 1", repr(self.shrinkage), "shrinkage=0.1")
        if samples < 2:
            raise expected("at least two samples to whiten", samples, "more of them")
        mean_D, variances_D, directions_DD, varying = principal(x_ND)
        variances_D = (1.0 - self.shrinkage) * variances_D + self.shrinkage * variances_D.mean()
        if self.shrinkage and varying:
            varying = more_than_rounding(variances_D, max(samples, all_of_them))
        if varying < kept:
            many = f"{samples:,} samples that vary in {varying}"
            hint = f"dimensions={varying} or fewer, shrinkage=0.1, or more samples" if varying else "other samples"
            raise expected(f"samples that vary in the {kept} directions to whiten", many, hint)
        # All at once: samples that are refused leave what was learned before.
        self.mean_, self.directions_ = mean_D, directions_DD[:, :kept].contiguous()
        self.variances_ = variances_D[:kept].contiguous()

    def _transform(self, x_ND: Tensor) -> Tensor:
        mean_D, directions_DK, variances_K = self._on(x_ND.device)
        return (x_ND - mean_D) @ directions_DK * variances_K.rsqrt()

    def inverse_transform(self, X: Array) -> Array:
        """Back: exactly where all dimensions were kept, else the nearest embeddings with the kept ones."""
        self.check_fitted()
        z_NK = matrix_of(X, len(self.variances_))
        mean_D, directions_DK, variances_K = self._on(z_NK.device)
        return like(z_NK * variances_K.sqrt() @ directions_DK.mT + mean_D, X)

    def _on(self, device: Any) -> tuple[Tensor, Tensor, Tensor]:
        return self.mean_.to(device), self.directions_.to(device), self.variances_.to(device)
