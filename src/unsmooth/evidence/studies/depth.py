"""What the studies of depth share: which models, and how they are trained.

ViTs on CIFAR-10 with a class token and Xavier's initialisation, the setting in which post-norm models were seen to fail
before any of these runs. They are short probes, not P2's setting, which is not public: half of the training images,
patches of four pixels, five epochs, crops and flips alone. A variant is called after its kind and its depth, "post-24";
at the smaller scales it keeps its name and is shallower.

Remedies are on post-norm models, whose failure they are to cure, with their default settings:

- ``deescalate`` takes the mean over tokens out of attention's output.
- ``deepnorm`` draws values, outputs and MLPs anew with its own gain, which is Xavier's too.
- ``b2t`` adds a block's input in front of its last norm.
- ``rezero`` drops all norms: a post-norm ViT has none after its last block, so nothing is normalised at all.
- ``residual_scaling`` multiplies both branches by 1/√L and keeps the norm after the addition.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from unsmooth.evidence.bench import Bench
from unsmooth.evidence.studies.images import cut
from unsmooth.training import Config, override

KINDS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "post": ("post", ()),
    "pre": ("pre", ()),
    "deescalate": ("post", ("deescalate",)),
    "deepnorm": ("post", ("deepnorm",)),
    "b2t": ("post", ("b2t",)),
    "rezero": ("post", ("rezero",)),
    "residual_scaling": ("post", ("residual_scaling",)),
}
"""Kind to the place of its norms and its remedies."""

FEW = ("post-12", "pre-12", "post-24", "pre-24", "deescalate-24", "rezero-24", "post-40", "pre-40")
SOME = (*FEW, "deescalate-40")
# Those of one depth together: what trains side by side is done at the same time.
ALL = (
    *("post-12", "pre-12", "post-24", "pre-24", "deescalate-24", "deepnorm-24"),
    *("b2t-24", "rezero-24", "residual_scaling-24", "post-40", "pre-40", "deescalate-40"),
)

PROBE: Mapping[str, Any] = {
    # Short runs have nothing to overfit, and what depth does is not to be mixed with what regularisation does.
    "network.drop_path": 0.0,
    "augment.rand": "",
    "augment.mixup": 0.0,
    "augment.cutmix": 0.0,
    "augment.smoothing": 0.0,
    "measuring.every": 0,
    "measuring.at": (),
    "measuring.metrics": ("mean_cosine", "token_similarity"),
}
IN_SECONDS: Mapping[str, Any] = {"train_limit": 160, "epochs": 1, "schedule.warmup": 0.2}
IN_MINUTES: Mapping[str, Any] = {
    "dim": 32,
    "hidden": 128,
    "train_limit": 4_000,
    "test_limit": 1_000,
    "batch": 50,
    "epochs": 2,
    "schedule.warmup": 0.2,
    "measuring.sequences": 32,
}
FULL: Mapping[str, Any] = {
    "train_limit": 25_000,
    "batch": 128,
    "epochs": 5,
    "schedule.warmup": 0.5,
    "measuring.sequences": 64,
    # Only at the end: looking and saving would take longer than so short a training.
    "evaluate_every": 5,
    "checkpoint_every": 5,
}


def variants(bench: Bench) -> tuple[str, ...]:
    """Which variants there are at the scale of the bench."""
    return bench.pick(FEW, SOME, ALL)


def rates(bench: Bench) -> tuple[float, ...]:
    """The grid of learning rates, the same for every variant."""
    return bench.pick((1e-3, 3e-3), (5e-4, 2e-3), (1e-4, 3e-4, 1e-3))


def depth_of(variant: str, bench: Bench) -> int:
    """How many blocks a variant has at the scale of the bench.

    >>> depth_of("post-24", Bench(scale="full")), depth_of("post-24", Bench(scale="tiny"))
    (24, 3)
    """
    named = int(variant.rpartition("-")[2])
    return {12: bench.pick(2, 6, 12), 24: bench.pick(3, 12, 24), 40: bench.pick(4, 20, 40)}[named]


def settings(variant: str, rate: float, bench: Bench) -> Config:
    """A variant at a learning rate.

    >>> config = settings("b2t-24", 3e-4, Bench(scale="full"))
    >>> config.network.norm, config.network.init, config.network.pooling, config.network.depth, config.remedies
    ('post', 'xavier', 'class', 24, ('b2t',))
    """
    norm, remedies = KINDS[variant.rpartition("-")[0]]
    changes = {
        **PROBE,
        **bench.pick(IN_SECONDS, IN_MINUTES, {}),
        "depth": depth_of(variant, bench),
        "norm": norm,
        "remedies": remedies,
        "lr": rate,
    }
    return override(cut("vit_cifar10", bench, FULL), changes)
