"""The papers' runs, each a Python function in a file of its own."""

from unsmooth.training.recipes.recipe import RECIPES, Size, recipe
from unsmooth.training.recipes.vit_cifar10 import vit_cifar10
from unsmooth.training.recipes.vit_cifar100 import vit_cifar100
from unsmooth.training.recipes.vit_imagenet import vit_imagenet

__all__ = ["RECIPES", "Size", "recipe", "vit_cifar10", "vit_cifar100", "vit_imagenet"]
