"""Image augmentation in batches on the device, each operation as Pillow would do it to one image."""

from unsmooth.training.augment.crop import RandomCrop
from unsmooth.training.augment.erasing import RandomErasing
from unsmooth.training.augment.flip import RandomFlip
from unsmooth.training.augment.mix import Mix
from unsmooth.training.augment.normalise import Normalise
from unsmooth.training.augment.pipeline import Augment, AugmentConfig
from unsmooth.training.augment.randaugment import Choice, RandAugment
from unsmooth.training.augment.spec import RandSpec

__all__ = [
    "Augment",
    "AugmentConfig",
    "Choice",
    "Mix",
    "Normalise",
    "RandAugment",
    "RandSpec",
    "RandomCrop",
    "RandomErasing",
    "RandomFlip",
]
