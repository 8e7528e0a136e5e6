"""Deep ViTs on CIFAR-10 as in P2 (arXiv 2312.06182), with depth, the place of the norms and the init as axes.

What P2 found of post-norm models is told in its abstract; its optimiser settings, depths and accuracies are not public.
So everything but the axes is that of `vit_cifar100`, with patches of four pixels so that a deep model trains in
minutes: ``--depth 24 --norm post --init xavier --with deescalate``.
"""

from __future__ import annotations

from dataclasses import replace

from unsmooth.training.config import Config
from unsmooth.training.recipes.recipe import RECIPES, Size
from unsmooth.training.recipes.vit_cifar100 import vision, vit_cifar100

CIFAR10_MEAN, CIFAR10_STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)


def vit_cifar10(size: Size = "base") -> Config:
    """A post-norm ViT with Xavier's initialisation, the setting in which depth fails; change the axes to see it not."""
    base = vit_cifar100(size)
    assert base.augment is not None
    network = vision(base)
    return replace(
        base,
        recipe="vit_cifar10",
        network=replace(network, classes=10, patch=max(4, network.patch), norm="post", init="xavier"),
        data=replace(base.data, name="cifar10"),
        augment=replace(base.augment, mean=CIFAR10_MEAN, std=CIFAR10_STD, classes=10),
        optimiser=replace(base.optimiser, clip=1.0),
    )


RECIPES.add("vit_cifar10", vit_cifar10)
