"""The papers' runs, each a Python function in a file of its own."""

from unsmooth.training.recipes.cram_bert import cram_bert
from unsmooth.training.recipes.recipe import RECIPES, Size, recipe
from unsmooth.training.recipes.superglue import superglue
from unsmooth.training.recipes.vit_cifar10 import vit_cifar10
from unsmooth.training.recipes.vit_cifar100 import vit_cifar100
from unsmooth.training.recipes.vit_imagenet import vit_imagenet
from unsmooth.training.recipes.xl_wt103 import xl_wt103

__all__ = [
    "RECIPES",
    "Size",
    "cram_bert",
    "recipe",
    "superglue",
    "vit_cifar10",
    "vit_cifar100",
    "vit_imagenet",
    "xl_wt103",
]
