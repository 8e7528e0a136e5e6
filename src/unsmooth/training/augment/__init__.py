"""Image augmentation in batches on the device, each operation as Pillow would do it to one image."""

from unsmooth.training.augment.pipeline import Augment, AugmentConfig
from unsmooth.training.augment.randaugment import Choice, RandAugment, RandSpec
from unsmooth.training.augment.transforms import Mix, Normalise, RandomCrop, RandomErasing, RandomFlip

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
