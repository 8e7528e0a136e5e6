"""All that happens to a batch of images between the data set and the network."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from unsmooth import keyed
from unsmooth.training.augment.randaugment import RandAugment
from unsmooth.training.augment.transforms import Mix, Normalise, RandomCrop, RandomErasing, RandomFlip


@dataclass(frozen=True)
class AugmentConfig:
    """What is done to images; 0 or "" switches a step off.

    Attributes:
        crop_pad: Border for random crops, in pixels.
        flip: Share of images that are mirrored.
        rand: RandAugment policy, such as "rand-m9-mstd0.5-inc1".
        interpolation: Of its operations: "random", "bilinear" or "bicubic".
        erase: Share of images with an erased rectangle of noise.
        mixup: Parameter of Mixup's Beta distribution.
        cutmix: Parameter of CutMix's.
        switch: Share of batches for CutMix where both are on.
        smoothing: Of the labels.
        mean: Of the data set per channel, with white as 1. Those of CIFAR-100.
        std: Its standard deviation per channel.
        classes: Of the data set.
    """

    crop_pad: int = 4
    flip: float = 0.5
    rand: str = "rand-m9-n2-mstd1.0"
    interpolation: str = "random"
    erase: float = 0.0
    mixup: float = 1.0
    cutmix: float = 0.8
    switch: float = 0.5
    smoothing: float = 0.1
    mean: tuple[float, float, float] = (0.5071, 0.4865, 0.4409)
    std: tuple[float, float, float] = (0.2673, 0.2564, 0.2762)
    classes: int = 100


class Augment(nn.Module):
    """Crop, flip, RandAugment, normalise, erase, mix: a batch on the device, in one go.

    What an image gets depends on its key alone, and how the batch is mixed on the batch's key alone. Shapes are fixed
    and nothing is asked back from the device, so it can be compiled as a whole and captured in a CUDA graph.

    Args:
        config: The steps.
        dtype: Of the images that come out.

    Example:
        >>> from unsmooth import keyed
        >>> augment = Augment(AugmentConfig(classes=10))
        >>> images, labels = torch.zeros(4, 3, 32, 32, dtype=torch.uint8), torch.arange(4)
        >>> images, targets = augment(images, labels, keyed.keys(0, torch.arange(4)), torch.tensor(1))
        >>> images.shape, targets.shape
        (torch.Size([4, 3, 32, 32]), torch.Size([4, 10]))
    """

    def __init__(self, config: AugmentConfig, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.config, self.dtype = config, dtype
        fill = [min(255, round(255 * part)) for part in config.mean]
        self.crop = RandomCrop(config.crop_pad)
        self.flip = RandomFlip(config.flip)
        self.erase = RandomErasing(config.erase)
        self.rand = RandAugment.parse(config.rand, fill, config.interpolation) if config.rand else None
        self.normalise = Normalise(config.mean, config.std)
        self.mix = Mix(config.mixup, config.cutmix, config.switch, 1.0, config.smoothing, config.classes)

    @torch.no_grad()
    def forward(
        self, images_BCHW: Tensor, labels_B: Tensor, sample_keys_B: Tensor, batch_key: Tensor
    ) -> tuple[Tensor, Tensor]:
        """uint8 images, labels, a key for each image and one for the batch, to images and soft targets (B, classes)."""
        keys = self._keys(sample_keys_B, batch_key)
        if self.config.crop_pad:
            images_BCHW = self.crop.with_keys(images_BCHW, keys["crop"])
        if self.config.flip:
            images_BCHW = self.flip.with_keys(images_BCHW, keys["flip"])
        if self.rand is not None:
            images_BCHW = self.rand.with_keys(images_BCHW, keys["rand"])
        images_BCHW = self.normalise(images_BCHW)
        if self.config.erase:
            images_BCHW = self.erase.with_keys(images_BCHW, keys["erase"])
        images_BCHW, targets_BC = self.mix.with_keys(images_BCHW, labels_B, keys["mix"])
        return images_BCHW.to(self.dtype), targets_BC

    def _keys(self, sample_keys_B: Tensor, batch_key: Tensor) -> dict[str, Tensor]:
        """Keys of all steps, derived in one go, for the batch in the same go: a hash costs two dozen small kernels.

        Each step has columns of its own whether it is on or off, so that switching one leaves the others as they were.
        """
        draws = {"crop": self.crop.draws, "flip": self.flip.draws, "erase": self.erase.draws}
        draws["rand"] = self.rand.draws if self.rand is not None else 0
        everyone = torch.cat([sample_keys_B, batch_key.reshape(1)])
        derived = keyed.derive(everyone, sum(draws.values()))
        keys = dict(zip(draws, torch.split(derived[:-1], list(draws.values()), dim=1), strict=True))
        return {**keys, "mix": derived[-1, : self.mix.draws]}
