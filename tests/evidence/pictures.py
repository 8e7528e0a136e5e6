"""Pictures to damage, and how near two damaged ones are."""

import numpy as np
import torch


def pictures(count, seed=0):
    """Smooth random colours with a sharp square and some black, white and grey."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.rand(count, 3, 7, 7, generator=generator)
    images = torch.nn.functional.interpolate(coarse, size=32, mode="bicubic").clamp(0, 1).mul(255).byte()
    images[:, :, 6:14, 9:20] = torch.tensor([200, 60, 40], dtype=torch.uint8)[:, None, None]
    images[:, :, 20:24, 20:24] = 0
    images[:, :, 24:28, 20:24] = 255
    images[:, :, 24:28, 24:28] = 90
    return images


def as_numpy(images):
    return images.permute(0, 2, 3, 1).numpy()


def to_bytes(values):
    """From 0 … 1 to bytes, cut off; the hair is for values that are whole in exact arithmetic."""
    return np.uint8(np.clip(values, 0, 1) * 255 + 1e-6)


def same(ours, reference):
    """Equal but for a few single levels, where a value is as near to a whole number as the arithmetic is exact."""
    difference = np.abs(ours.astype(int) - reference.astype(int))
    return difference.max() <= 1 and (difference > 0).mean() < 0.001


def far_off(damaged, images):
    return (damaged.double() - images.double()).abs().mean().item()
