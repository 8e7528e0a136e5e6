"""Steps of augmentation on a batch: flipped, cropped, erased, mixed and normalised, each with keys of its own."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from scipy.special import betaincinv
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the usual name

from unsmooth import keyed
from unsmooth.errors import expected, unknown_name


def happens(keys: Tensor, probability: float) -> Tensor:
    """True for a share `probability` of all keys: exactly none at 0, exactly all at 1.

    >>> import torch
    >>> happens(torch.tensor([0, 2**32 - 1]), 1.0).tolist(), happens(torch.tensor([0]), 0.0).tolist()
    ([True, True], [False])
    """
    return keys < round(probability * 2**32)


def share(value: float, name: str) -> float:
    """`value` if it is a probability.

    >>> share(0.5, "p")
    0.5
    """
    if not 0.0 <= value <= 1.0:
        raise expected(f"{name} from 0 to 1", value, f"{name}=0.5")
    return value


class RandomFlip(nn.Module):
    """Mirror each image with probability `p`.

    Args:
        p: Share of images that are mirrored.

    Example:
        >>> from unsmooth import keyed
        >>> image = torch.arange(4, dtype=torch.uint8).expand(1, 3, 1, 4)
        >>> RandomFlip(p=1.0)(image, keyed.keys(0, torch.arange(1)))[0, 0].tolist()
        [[3, 2, 1, 0]]
    """

    draws = 1

    def __init__(self, p: float = 0.5) -> None:
        super().__init__()
        self.p = share(p, "p")

    def forward(self, images_BCHW: Tensor, keys_B: Tensor) -> Tensor:
        """One key per image."""
        return self.with_keys(images_BCHW, keyed.derive(keys_B, self.draws))

    def with_keys(self, images_BCHW: Tensor, keys_BK: Tensor) -> Tensor:
        """The same with `draws` keys per image."""
        return torch.where(happens(keys_BK[:, 0], self.p)[:, None, None, None], images_BCHW.flip(-1), images_BCHW)


class RandomCrop(nn.Module):
    """Shift images by up to `pad` pixels each way, all shifts alike; what comes in from outside is `fill`.

    Args:
        pad: Width of the border.
        fill: Grey level of the border, the same for all channels.

    Example:
        >>> from unsmooth import keyed
        >>> images = torch.full((2, 3, 8, 8), 200, dtype=torch.uint8)
        >>> RandomCrop(pad=4)(images, keyed.keys(0, torch.arange(2))).shape
        torch.Size([2, 3, 8, 8])
    """

    draws = 2

    def __init__(self, pad: int = 4, fill: int = 0) -> None:
        super().__init__()
        if pad < 0:
            raise expected("a border of 0 pixels or more", pad, "pad=4")
        self.pad, self.fill = pad, fill

    def forward(self, images_BCHW: Tensor, keys_B: Tensor) -> Tensor:
        """One key per image."""
        return self.with_keys(images_BCHW, keyed.derive(keys_B, self.draws))

    def with_keys(self, images_BCHW: Tensor, keys_BK: Tensor) -> Tensor:
        """The same with `draws` keys per image, for callers who derive the keys of many steps at once."""
        batch, channels, height, width = images_BCHW.shape
        wide = width + 2 * self.pad
        padded = F.pad(images_BCHW, (self.pad,) * 4, value=self.fill).flatten(2)
        corner_B2 = keyed.integers(keys_BK, 2 * self.pad + 1)
        rows_BH = corner_B2[:, :1] + torch.arange(height, device=images_BCHW.device)
        columns_BW = corner_B2[:, 1:] + torch.arange(width, device=images_BCHW.device)
        place = (rows_BH[:, :, None] * wide + columns_BW[:, None, :]).flatten(1)
        return padded.gather(2, place[:, None].expand(-1, channels, -1)).view(batch, channels, height, width)


MODES = ("pixel", "rand", "const")
_ATTEMPTS = 10


class RandomErasing(nn.Module):
    """Erase a rectangle of normalised images, as timm does.

    Random rectangles of noise in place of a part of the image (Zhong et al. 2017, arXiv 1708.04896).

    Area and aspect ratio are drawn up to ten times, until the rectangle is smaller than the image both ways. Here all
    ten are drawn, and the first that fits is taken.

    Args:
        p: Share of images in which something is erased.
        mode: What comes in its place: "pixel", normal noise in each pixel; "rand", one normal colour; "const", zeros.
        smallest: Least share of the image's area.
        largest: Greatest share of it.
        aspect: Least ratio of height to width; the greatest is its inverse.

    Example:
        >>> from unsmooth import keyed
        >>> images = torch.ones(1, 3, 8, 8)
        >>> erased = RandomErasing(p=1.0, mode="const")(images, keyed.keys(0, torch.arange(1)))
        >>> 0 < (erased == 0).float().mean().item() < 1
        True
    """

    draws = 2 + 4 * _ATTEMPTS

    def __init__(
        self,
        p: float = 0.25,
        mode: str = "pixel",
        smallest: float = 0.02,
        largest: float = 1 / 3,
        aspect: float = 0.3,
    ) -> None:
        super().__init__()
        if mode not in MODES:
            raise unknown_name("mode of erasing", mode, MODES)
        self.p, self.mode = share(p, "p"), mode
        self.smallest, self.largest, self.aspect = share(smallest, "smallest"), share(largest, "largest"), aspect

    def forward(self, images_BCHW: Tensor, keys_B: Tensor) -> Tensor:
        """One key per image."""
        return self.with_keys(images_BCHW, keyed.derive(keys_B, self.draws))

    def with_keys(self, images_BCHW: Tensor, keys_BK: Tensor) -> Tensor:
        """The same with `draws` keys per image."""
        height, width = images_BCHW.shape[2:]
        top, left, tall, wide = self.rectangles(keys_BK, height, width)[..., None].unbind(1)
        row = torch.arange(height, device=images_BCHW.device)
        column = torch.arange(width, device=images_BCHW.device)
        in_rows = (row >= top) & (row < top + tall)
        in_columns = (column >= left) & (column < left + wide)
        erased = in_rows[:, None, :, None] & in_columns[:, None, None, :]
        return torch.where(erased, self._replacement(images_BCHW, keys_BK[:, 1]), images_BCHW)

    def rectangles(self, keys_BK: Tensor, height: int, width: int) -> Tensor:
        """(B, 4): top, left, height and width of what is erased, the last two 0 where nothing is."""
        size, shape, down, right = keys_BK[:, 2:].reshape(-1, 4, _ATTEMPTS).unbind(1)
        area = _between(size, self.smallest, self.largest) * (height * width)
        ratio = _between(shape, math.log(self.aspect), -math.log(self.aspect)).exp()
        tall = (area * ratio).sqrt().round().to(torch.int64)
        wide = (area / ratio).sqrt().round().to(torch.int64)
        fits = (tall < height) & (wide < width)
        first = fits.to(torch.int8).argmax(dim=1, keepdim=True)
        top = (down * (height - tall + 1)) >> 32
        left = (right * (width - wide + 1)) >> 32
        taken = torch.stack([top, left, tall, wide], dim=1).gather(2, first[:, None].expand(-1, 4, -1))[..., 0]
        return torch.where((fits.any(1) & happens(keys_BK[:, 0], self.p))[:, None], taken, 0)

    def _replacement(self, images_BCHW: Tensor, keys_B: Tensor) -> Tensor:
        if self.mode == "const":
            return torch.zeros_like(images_BCHW)
        shape = images_BCHW.shape[1:] if self.mode == "pixel" else (images_BCHW.shape[1], 1, 1)
        return keyed.normal(keyed.derive(keys_B, math.prod(shape))).view(-1, *shape).to(images_BCHW.dtype)


def _between(keys: Tensor, low: float, high: float) -> Tensor:
    return low + (high - low) * keyed.uniform(keys).to(torch.float64)


_BITS = 13  # 2^13 steps between quantiles of the Beta distribution


class Mix(nn.Module):
    r"""One decision for the whole batch, whose partner is itself in reverse order, as in timm's batch mode.

    Two images in one: Mixup (Zhang et al. 2017, arXiv 1710.09412) and CutMix (Yun et al. 2019, arXiv 1905.04899).

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


class Normalise(nn.Module):
    r"""Bytes to :math:`(x / 255 - \mu) / \sigma` per channel.

    Args:
        mean: Mean of each channel over the data set, with white as 1.
        std: Standard deviation of each channel.
        dtype: Of what comes out.

    Example:
        >>> image = torch.tensor([0, 255], dtype=torch.uint8).view(1, 1, 1, 2)
        >>> Normalise([0.5], [0.25])(image).flatten().tolist()
        [-2.0, 2.0]
    """

    centre: Tensor
    spread: Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float], dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        if len(mean) != len(std) or min(std) <= 0:
            raise expected("a mean and a positive std for each channel", f"{mean} and {std}", "std=(0.25, 0.25, 0.25)")
        self.dtype = dtype
        per_channel = (1, -1, 1, 1)
        self.register_buffer("centre", 255 * torch.tensor(mean).view(per_channel), persistent=False)
        self.register_buffer("spread", 255 * torch.tensor(std).view(per_channel), persistent=False)

    def forward(self, images_BCHW: Tensor) -> Tensor:
        """In float32 until the last step."""
        return ((images_BCHW.to(torch.float32) - self.centre) / self.spread).to(self.dtype)
