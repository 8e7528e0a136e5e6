"""The corruptions of CIFAR-10-C and CIFAR-100-C, generated: 15 standard ones and 4 extra, at five severities.

Hendrycks and Dietterich 2019, "Benchmarking neural network robustness to common corruptions and perturbations" (arXiv
1903.12261). The constants of each severity are theirs, for images of 32 by 32 pixels, from
``ImageNet-C/create_c/make_cifar_c.py`` of https://github.com/hendrycks/robustness. The code is written anew on tensors,
with draws that depend on nothing but seed, corruption, severity and image number: the images are damaged in the same
ways as the published ones, but they are not those images. Frost differs in kind: see `weather.frost`.

>>> images = torch.full((2, 3, 32, 32), 100, dtype=torch.uint8)
>>> corrupt(images, "brightness", 5).unique()
tensor([176], dtype=torch.uint8)
"""

from __future__ import annotations

import torch
from torch import Tensor

from unsmooth.errors import expected
from unsmooth.evidence.corruptions import blur, digital, extra, noise, weather  # noqa: F401  registers them
from unsmooth.evidence.corruptions.kind import CORRUPTIONS, SEVERITIES, Corruption, Draws, whole_levels

NAMES = (
    "gaussian_noise",
    "shot_noise",
    "impulse_noise",
    "defocus_blur",
    "glass_blur",
    "motion_blur",
    "zoom_blur",
    "snow",
    "frost",
    "fog",
    "brightness",
    "contrast",
    "elastic_transform",
    "pixelate",
    "jpeg_compression",
)
EXTRA = ("speckle_noise", "gaussian_blur", "spatter", "saturate")
_AT_ONCE = 1024  # images in float64 that are worked on together

__all__ = ["CORRUPTIONS", "EXTRA", "NAMES", "SEVERITIES", "Corruption", "corrupt"]


def corrupt(images: Tensor, name: str, severity: int, seed: int = 0, sample: Tensor | None = None) -> Tensor:
    """Damaged copies of images.

    Args:
        images: uint8 (batch, 3, size, size) on any device; the constants are made for size 32.
        name: One of `NAMES` or `EXTRA`.
        severity: From 1 to 5.
        seed: Of the draws.
        sample: Number of each image, by which its draws are keyed; 0, 1, … when not given. With it, the images of a
            set come out the same however they are split into batches.

    Returns:
        uint8, same shape and device.

    >>> images = torch.arange(3 * 32 * 32).remainder(256).to(torch.uint8).view(1, 3, 32, 32).repeat(2, 1, 1, 1)
    >>> both = corrupt(images, "snow", 3)
    >>> torch.equal(both[1:], corrupt(images[1:], "snow", 3, sample=torch.tensor([1])))
    True
    """
    kind = CORRUPTIONS[name]
    sample = _checked(images, severity, sample)
    batches = zip(torch.split(images, _AT_ONCE), torch.split(sample, _AT_ONCE), strict=True)
    done = [
        whole_levels(kind.change(part.double() / 255, Draws(seed, name, severity, numbers), severity)).to(torch.uint8)
        for part, numbers in batches
        if len(part)
    ]
    return torch.cat(done) if done else images.clone()


def _checked(images: Tensor, severity: int, sample: Tensor | None) -> Tensor:
    """The image numbers, on the images' device."""
    if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] != 3 or images.shape[2] != images.shape[3]:
        got = f"{images.dtype} of shape {tuple(images.shape)}"
        raise expected("uint8 images (batch, 3, size, size)", got, "pixels from 0 to 255, channels first and square")
    if severity not in SEVERITIES:
        raise expected("a severity from 1 to 5", severity, "severity=5 for the strongest")
    if sample is None:
        return torch.arange(len(images), device=images.device)
    if sample.shape != images.shape[:1] or sample.is_floating_point() or sample.dtype == torch.bool:
        got = f"{sample.dtype} of shape {tuple(sample.shape)}"
        raise expected(f"{len(images)} whole numbers, one per image, as sample", got, "torch.arange(len(images))")
    return sample.to(images.device, torch.int64)
