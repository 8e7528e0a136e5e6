"""Images for comparisons with Pillow."""

from __future__ import annotations

import numpy as np
from benchmarks.augment_exactness import by_pillow, ours, synthetic
from PIL import Image


def pictures(side: int = 32) -> np.ndarray:
    """Forty images like photographs, and the awkward ones: flat, black, white, two levels, ramps, plain noise."""
    natural = synthetic(40, side, seed=3)
    flat = np.full((3, side, side), 77, dtype=np.uint8)
    two_levels = np.where(natural[:4] > np.median(natural[:4]), 201, 200).astype(np.uint8)
    ramp = np.broadcast_to(np.arange(side, dtype=np.uint8) * (255 // side), (3, side, side))
    noise = np.random.default_rng(0).integers(0, 256, (4, 3, side, side), dtype=np.uint8)
    awkward = np.stack([flat, flat * 0, flat * 0 + 255, ramp, ramp.transpose(0, 2, 1)])
    return np.concatenate([natural, two_levels, awkward, noise])


def differences(name: str, images: np.ndarray, argument: float, cubic: bool = False) -> np.ndarray:
    """Grey levels between our operation and Pillow's."""
    mine = ours(name, images, [argument] * len(images), cubic).astype(int)
    for image, result in zip(images, mine, strict=True):
        picture = Image.fromarray(np.ascontiguousarray(image.transpose(1, 2, 0)))
        result -= np.asarray(by_pillow(name, picture, argument, cubic)).transpose(2, 0, 1)
    return np.abs(mine)
