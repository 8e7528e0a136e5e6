"""The mean and the few largest directions are taken out of embeddings (Mu & Viswanath 2018)."""

from __future__ import annotations

from torch import Tensor

from unsmooth.errors import expected
from unsmooth.posthoc.estimator import Estimator, estimator, whole
from unsmooth.posthoc.principal import principal


@estimator
class AllButTheTop(Estimator):
    r"""What all embeddings share, and the directions in which they differ most, are taken out.

    .. math:: x \mapsto \tilde x - \sum_{k=1}^{D} (u_k \cdot \tilde x)\, u_k, \qquad \tilde x = x - \mu

    with the mean μ and the D first principal directions u of the samples.

    Source: Mu & Viswanath 2018, "All-but-the-top" (arXiv 1702.01417).

    Args:
        components: D, from 0 (only the mean goes) to the number of dimensions. None takes a hundredth of the
            dimensions, as the paper advises, and at least 1.

    Example:
        >>> import torch
        >>> x = torch.tensor([[3.0, 1.0], [-1.0, 1.0], [1.0, 2.0], [1.0, 0.0]])
        >>> AllButTheTop(components=1).fit_transform(x)  # mean (1, 1); the first direction goes
        tensor([[ 0.,  0.],
                [ 0.,  0.],
                [ 0.,  1.],
                [ 0., -1.]])
    """

    name = "all_but_the_top"
    summary = "the mean and the few largest principal directions are taken out"
    equation = "x ← x̃ − Σ_{k≤D} (u_k·x̃) u_k, x̃ = x − μ"
    paper = "Mu & Viswanath 2018, arXiv 1702.01417"
    learned = ("mean_", "directions_")

    mean_: Tensor
    directions_: Tensor

    def __init__(self, components: int | None = None) -> None:
        self.components = components

    def _fit(self, x_ND: Tensor) -> None:
        samples, dimensions = x_ND.shape
        advised = max(1, round(dimensions / 100))
        wanted = advised if self.components is None else whole("components", self.components, None, 0, dimensions)
        if samples <= wanted:
            hint = f"components={samples - 1}, or more samples"
            raise expected(f"more than {wanted} samples to take {wanted} directions out", samples, hint)
        if samples == 1:  # and nothing but its mean is to go
            self.mean_, self.directions_ = x_ND[0], x_ND[:0]
            return
        mean_D, _, directions_DD, varying = principal(x_ND)
        if varying < wanted:
            many = f"{samples:,} samples that vary in {varying}"
            raise expected(f"samples that vary in the {wanted} directions to take out", many, f"components={varying}")
        # Both at once: samples that are refused leave what was learned before.
        self.mean_, self.directions_ = mean_D, directions_DD[:, :wanted].mT.contiguous()

    def _transform(self, x_ND: Tensor) -> Tensor:
        mean_D, directions_KD = self.mean_.to(x_ND.device), self.directions_.to(x_ND.device)
        centred_ND = x_ND - mean_D
        return centred_ND - centred_ND @ directions_KD.mT @ directions_KD
