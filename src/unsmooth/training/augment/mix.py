"""Two images in one: Mixup (Zhang et al. 2017, arXiv 1710.09412) and CutMix (Yun et al. 2019, arXiv 1905.04899)."""

from __future__ import annotations

import numpy as np
import torch
from scipy.special import betaincinv
from torch import Tensor, nn

from unsmooth import keyed
from unsmooth.errors import expected
from unsmooth.training.augment.chance import happens, share

_BITS = 13  # 2^13 steps between quantiles of the Beta distribution


class Mix(nn.Module):
    r"""One decision for the whole batch, whose partner is itself in reverse order, as in timm's batch mode.

    Mixup: :math:`\lambda x_i + (1 - \lambda) x_j` with :math:`\lambda \sim Beta(a, a)`. CutMix: a box of the area
    :math:`1 - \lambda` from the partner, around a random centre, and cut at the border; then λ is corrected to the area
    that is left. Targets are mixed with the same λ and smoothed: :math:`(1 - s) y + s / C`.

    Beta variables are read off a table of its quantiles, with straight lines in between: the distribution function of
    what is drawn differs from Beta's by less than one step of the table, 2⁻¹³, anywhere.

    Args:
        mixup: Parameter *a* of Mixup; 0 for none.
        cutmix: Parameter *a* of CutMix; 0 for none.
        switch: Share of the mixed batches for which CutMix is taken where both are on.
        probability: Share of the batches that are mixed at all.
        smoothing: Share *s* of a target that goes to all classes alike.
        classes: How many there are.

    Example:
        >>> from unsmooth import keyed
        >>> mix = Mix(mixup=0.0, cutmix=0.0, smoothing=0.2, classes=4)
        >>> mix(torch.zeros(1, 3, 8, 8), torch.tensor([2]), torch.tensor(7))[1].tolist()
        [[0.05..., 0.05..., 0.85..., 0.05...]]
    """

    draws = 5
    quantiles: Tensor
    label: Tensor

    def __init__(
        self,
        mixup: float = 1.0,
        cutmix: float = 0.8,
        switch: float = 0.5,
        probability: float = 1.0,
        smoothing: float = 0.1,
        classes: int = 100,
    ) -> None:
        super().__init__()
        if mixup < 0 or cutmix < 0:
            raise expected("mixup and cutmix of 0 or more", f"{mixup} and {cutmix}", "mixup=1.0, cutmix=0.8")
        # Where only one of the two is on, there is nothing to switch.
        self.switch = share(switch, "switch") if mixup and cutmix else float(cutmix > 0)
        self.probability, self.smoothing = share(probability, "probability"), share(smoothing, "smoothing")
        self.active = bool(mixup or cutmix) and probability > 0
        tables = np.stack([beta_quantiles(parameter or 1.0) for parameter in (mixup, cutmix)])
        self.register_buffer("quantiles", torch.from_numpy(tables), persistent=False)
        self.register_buffer("label", torch.arange(classes), persistent=False)

    def forward(self, images_BCHW: Tensor, labels_B: Tensor, batch_key: Tensor) -> tuple[Tensor, Tensor]:
        """Images of any floating dtype, mixed in float32, and targets (B, classes) in float32."""
        return self.with_keys(images_BCHW, labels_B, keyed.derive(batch_key, self.draws))

    def with_keys(self, images_BCHW: Tensor, labels_B: Tensor, keys_K: Tensor) -> tuple[Tensor, Tensor]:
        """The same with `draws` keys for the batch."""
        hot_BC = (labels_B[:, None] == self.label).to(torch.float32)
        if self.active:
            own_HW, own_share = self.decide(keys_K, *images_BCHW.shape[2:])
            plain = images_BCHW.to(torch.float32)
            images_BCHW = (plain * own_HW + plain.flip(0) * (1 - own_HW)).to(images_BCHW.dtype)
            hot_BC = hot_BC * own_share + hot_BC.flip(0) * (1 - own_share)
        return images_BCHW, hot_BC * (1 - self.smoothing) + self.smoothing / self.label.shape[0]

    def decide(self, keys_K: Tensor, height: int, width: int) -> tuple[Tensor, Tensor]:
        """Weight of the image itself in each pixel (H, W), and its share of the target, a scalar."""
        mixing, cutting = happens(keys_K[0], self.probability), happens(keys_K[1], self.switch)
        own = torch.where(mixing, self._beta(cutting, keys_K[2]), 1.0)
        side = (1 - own).sqrt()
        in_rows_H = _span(keys_K[3], side, height)
        in_columns_W = _span(keys_K[4], side, width)
        uncut_HW = ~(in_rows_H[:, None] & in_columns_W)
        weight_HW = torch.where(cutting, uncut_HW, own)
        left = torch.where(cutting, uncut_HW.to(torch.float64).mean(), own)
        return weight_HW.to(torch.float32), left.to(torch.float32)

    def _beta(self, cutting: Tensor, key: Tensor) -> Tensor:
        """Quantile of the key's place between 0 and 2³²."""
        beneath = 32 - _BITS
        cell = key >> beneath
        table = torch.where(cutting, self.quantiles[1], self.quantiles[0])
        low, high = table.gather(0, torch.stack([cell, cell + 1])).unbind(0)
        return low + (high - low) * ((key & (1 << beneath) - 1) * 2.0**-beneath).to(torch.float64)


def beta_quantiles(parameter: float) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Quantiles of Beta(a, a) at all multiples of 2⁻¹³ from 0 to 1.

    >>> [round(float(beta_quantiles(1.0)[place]), 6) for place in (0, 2048, 8192)]
    [0.0, 0.25, 1.0]
    """
    return np.asarray(betaincinv(parameter, parameter, np.linspace(0.0, 1.0, 2**_BITS + 1)))


def _span(key: Tensor, side: Tensor, size: int) -> Tensor:
    """Which of `size` places are in the box: half of its side, cut to an integer, each way from a random centre."""
    half = (side * size).to(torch.int64) // 2
    centre = keyed.integers(key, size)
    place = torch.arange(size, device=key.device)
    return (place >= centre - half) & (place < centre + half)
