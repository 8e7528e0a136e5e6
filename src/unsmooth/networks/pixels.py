"""From image files to what a `ViT` reads, by a small file beside its weights."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import Tensor

from unsmooth.errors import expected
from unsmooth.files import read_json, write_whole

FILE = "pixels.json"
_LARGEST = 1 << 14


@dataclass(frozen=True)
class Pixels:
    r"""Images as a network was trained to see them: scaled to its size, from 0 to 1, less the mean, over the deviation.

    Args:
        image: Side of the square image.
        mean: Of each channel, between 0 and 1.
        std: Standard deviation of each channel.

    Example:
        >>> from PIL import Image
        >>> grey = Image.new("RGB", (8, 6), (51, 51, 51))
        >>> Pixels(2, (0.1, 0.1, 0.1), (0.5, 0.5, 0.5))([grey])["pixel_values"][0, 0]  # (51/255 − 0.1) / 0.5
        tensor([[0.2000, 0.2000],
                [0.2000, 0.2000]])
    """

    image: int
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        if not 1 <= self.image <= _LARGEST:
            raise expected(f"image from 1 to {_LARGEST}", self.image, "image=224")
        if len(self.mean) != len(self.std) or len(self.mean) not in (1, 3):
            got = f"{len(self.mean)} and {len(self.std)}"
            raise expected("mean and std of one channel or of three", got, "mean=(0.5,), std=(0.5,)")
        if not all(map(math.isfinite, (*self.mean, *self.std))) or min(map(abs, self.std)) == 0:
            raise expected("finite mean and std, and no std of 0", f"{self.mean} and {self.std}", "std=(0.5,)")

    def __call__(self, images: Sequence[Any], return_tensors: str = "pt") -> dict[str, Tensor]:
        """Pillow images as {"pixel_values": (batch, channels, height, width)}."""
        mean, std = (torch.tensor(numbers)[:, None, None] for numbers in (self.mean, self.std))
        return {"pixel_values": (torch.stack([self._read(image) for image in images]) - mean) / std}

    def _read(self, image: Any) -> Tensor:
        grey = len(self.mean) == 1
        image = image.convert("L" if grey else "RGB")
        if image.size != (self.image, self.image):
            image = image.resize((self.image, self.image))
        bytes_HWC = torch.from_numpy(numpy.array(image, dtype=numpy.uint8))
        return (bytes_HWC[None] if grey else bytes_HWC.permute(2, 0, 1)).float() / 255

    def save_pretrained(self, folder: str | os.PathLike[str]) -> None:
        """Write `pixels.json`."""
        write_whole(Path(folder) / FILE, json.dumps(asdict(self), indent=2) + "\n")


def load_pixels(folder: Path) -> Pixels | None:
    """What `save_pretrained` wrote; None where there is no such file."""
    try:
        return read_json(folder / FILE, Pixels)
    except FileNotFoundError:
        return None
