"""ViT-Ti on CIFAR-100 as in P1 (arXiv 2401.04301), which takes the recipe of Park & Kim 2022 (arXiv 2202.06709).

Hyper-parameters as in Park & Kim's public configuration for CIFAR-100 (xxxnell/how-do-vits-work): patches of two
pixels, so 257 tokens with the class token; mixup 1.0 and cutmix 0.8 (DeiT has them the other way round); no random
erasing; queries, keys and values without biases; weight decay on all parameters. There the five epochs of warm-up come
before the 300 and the rate falls once an epoch; here they are the first five of them and it falls every step.
"""

from __future__ import annotations

from dataclasses import replace

from unsmooth.networks.config import ViTConfig
from unsmooth.training.augment.pipeline import AugmentConfig
from unsmooth.training.config import Config, DataConfig, Engine, Measuring, OptimiserConfig, Schedule
from unsmooth.training.recipes.recipe import RECIPES, Size

CIFAR100_MEAN, CIFAR100_STD = (0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)


def vit_cifar100(size: Size = "base") -> Config:
    """Park & Kim's ViT-Ti: 12 blocks, d 192, 300 epochs in batches of 96."""
    base = Config(
        recipe="vit_cifar100",
        task="images",
        network=ViTConfig(
            image=32,
            patch=2,
            classes=100,
            depth=12,
            dim=192,
            heads=3,
            hidden=768,
            qkv_bias=False,
            drop_path=0.1,
            eps=1e-5,
        ),
        data=DataConfig(name="cifar100"),
        augment=AugmentConfig(
            crop_pad=4,
            flip=0.5,
            rand="rand-m9-n2-mstd1.0",
            mixup=1.0,
            cutmix=0.8,
            smoothing=0.1,
            mean=CIFAR100_MEAN,
            std=CIFAR100_STD,
            classes=100,
        ),
        epochs=300,
        batch=96,
        optimiser=OptimiserConfig(lr=1.25e-4, weight_decay=0.05, decay_vectors=True, clip=5.0),
        schedule=Schedule(name="cosine", warmup=5),
        measuring=Measuring(every=10, at=(1, 2, 5)),
        engine=Engine(precision="bfloat16"),
        evaluate_every=5,
        checkpoint_every=10,
    )
    return shrunk(base) if size == "tiny" else base


def vision(config: Config) -> ViTConfig:
    """The network of a ViT recipe."""
    assert isinstance(config.network, ViTConfig)
    return config.network


def shrunk(base: Config) -> Config:
    """A ViT recipe for a minute on two CPU cores: fewer, narrower blocks, larger patches, few images."""
    return replace(
        base,
        size="tiny",
        network=replace(vision(base), patch=8, depth=4, dim=64, heads=2, hidden=256),
        data=replace(base.data, train_limit=2000, test_limit=500),
        epochs=5,
        batch=100,
        optimiser=replace(base.optimiser, lr=1e-3),
        schedule=replace(base.schedule, warmup=1),
        measuring=replace(base.measuring, every=1, at=(0.25, 0.5), sequences=32),
        engine=replace(base.engine, precision="float32"),
        log_every=10,
        evaluate_every=1,
        checkpoint_every=1,
    )


RECIPES.add("vit_cifar100", vit_cifar100)
