"""DeiT-Ti on ImageNet as in P1 (arXiv 2401.04301): DeiT's recipe (Touvron et al. 2021, arXiv 2012.12877), batch 512.

Hyper-parameters are the defaults of DeiT's public training script (facebookresearch/deit, main.py): RandAugment
rand-m9-mstd0.5-inc1, mixup 0.8, cutmix 1.0, erasing 0.25, repeated augmentation, a moving average of the weights with
decay 0.99996. Three repeats are that script's too. Reads an ImageFolder: train/CLASS/*.JPEG and val/CLASS/*.JPEG.
"""

from __future__ import annotations

from dataclasses import replace

from unsmooth.networks.config import ViTConfig
from unsmooth.training.augment.pipeline import AugmentConfig
from unsmooth.training.config import Config, DataConfig, Engine, Measuring, OptimiserConfig, Schedule
from unsmooth.training.recipes.recipe import RECIPES, Size
from unsmooth.training.recipes.vit_cifar100 import shrunk, vision

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def vit_imagenet(size: Size = "base") -> Config:
    """DeiT-Ti: 12 blocks, d 192, images of 224 pixels in patches of 16, 300 epochs in batches of 512."""
    base = Config(
        recipe="vit_imagenet",
        task="image_files",
        network=ViTConfig(
            image=224, patch=16, classes=1000, depth=12, dim=192, heads=3, hidden=768, drop_path=0.1, eps=1e-6
        ),
        data=DataConfig(name="imagenet"),
        augment=AugmentConfig(
            crop_pad=0,
            flip=0.5,
            rand="rand-m9-mstd0.5-inc1",
            interpolation="bicubic",
            erase=0.25,
            mixup=0.8,
            cutmix=1.0,
            smoothing=0.1,
            mean=IMAGENET_MEAN,
            std=IMAGENET_STD,
            classes=1000,
        ),
        epochs=300,
        batch=512,
        ema=0.99996,
        repeats=3,
        optimiser=OptimiserConfig(lr=5e-4, weight_decay=0.05),
        schedule=Schedule(name="cosine", warmup=5, final=0.02),
        measuring=Measuring(every=10, at=(1, 2, 5)),
        engine=Engine(precision="bfloat16"),
        evaluate_every=5,
        checkpoint_every=1,
    )
    if size == "base":
        return base
    small = shrunk(base)
    assert small.augment is not None
    return replace(
        small,
        network=replace(vision(small), image=32, classes=10),
        augment=replace(small.augment, classes=10),
        batch=99,
        ema=0.99,
    )


RECIPES.add("vit_imagenet", vit_imagenet)
