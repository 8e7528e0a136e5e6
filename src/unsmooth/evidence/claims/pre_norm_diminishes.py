"""P2 on pre-norm: it trains because it diminishes self-attention."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from unsmooth.evidence.bench import Bench
from unsmooth.evidence.branches import branch_shares
from unsmooth.evidence.claim import Claim, Measured, Section, Source, claim
from unsmooth.evidence.figure import Figure, Panel, Series
from unsmooth.evidence.finding import Finding, Judgement, Outcome, Wording, above, below, together
from unsmooth.evidence.interval import over_seeds, paired
from unsmooth.evidence.records import Trained
from unsmooth.networks import ViT, ViTConfig
from unsmooth.training.augment.transforms import Normalise
from unsmooth.training.data.synthetic import synthetic_images
from unsmooth.training.recipes.vit_cifar10 import CIFAR10_MEAN, CIFAR10_STD

INITS = ("xavier", "truncated_normal")
STYLES = ("pre", "post")
NAMED_DEPTHS = ("12", "24", "40")
IMAGES = 8
# A model that is right less often than this many times guessing has not been trained, whatever was tried.
GUESSES = 2.0


@claim
class PreNormDiminishes(Claim):
    """Share of attention: norm of what it adds over norm of the stream, mean over tokens, layer by layer.

    Trained models decide. Before training the images are gratings, whose patches have something in common as those of
    photographs do. On pixels of pure noise the patches have nothing in common: attention averages them away in the
    first layers and finds more to add as they become alike, which works against the claim; that is shown beside it. A
    model that has not learned anything has no share after training that would say something, and is left out there.
    """

    id: ClassVar[str] = "pre-norm-diminishes"
    number: ClassVar[int] = 28
    section: ClassVar[Section] = "training"
    quote: ClassVar[str] = (
        "the existing approach of diminishing the SA mechanism explicitly or implicitly (such as in pre-norm "
        "transformers)"
    )
    wording: ClassVar[Wording] = "verbatim"
    source: ClassVar[Source] = Source("P2", "v2", "abstract")
    reading: ClassVar[str] = (
        "In pre-norm models that were trained, what attention adds, relative to the stream it is added to, becomes "
        "less with depth, and more so than in post-norm models."
    )
    differs: ClassVar[str] = (
        "The sentence does not say what is diminished relative to what. It is true of the MLP with the same right, "
        "see stream-growth. Before training it depends on the images: on noise attention's share does not fall in "
        "every network."
    )
    would_decide: ClassVar[str] = (
        "Nothing is left to decide for these models; for larger ones, the same numbers of a trained ViT-B/16: "
        "minutes of a CPU."
    )
    for_if: ClassVar[str] = (
        "after training (CIFAR-10, 12, 24 and 40 blocks), with the ratio of attention's mean share in the last quarter "
        "of the layers to that in the first: the 95 % interval over seeds of pre-norm's ratio lies below 1 and that of "
        "post-norm's minus pre-norm's, paired by seed, above 0; trained models that are right no more than twice as "
        "often as guessing are left out, and at one depth at least both kinds have to be there"
    )
    against_if: ClassVar[str] = "one of these intervals lies wholly on the other side"
    studies: ClassVar[tuple[str, ...]] = ("depth_rates", "depth_seeds")

    def seeds(self, bench: Bench) -> tuple[int, ...]:
        """Of untrained networks; those of the trained ones are the study's."""
        return tuple(range(bench.pick(3, 4, 8)))

    def measure(self, bench: Bench) -> dict[str, Any]:
        """Shares by layer of untrained networks, and of those that the study trained."""
        depths = bench.pick((4, 8), (12, 24), (12, 24, 40))
        width = bench.pick(48, 96, 192)
        seeds, trained = self.seeds(bench), bench.study("depth_seeds")
        first = next(iter(next(iter(trained.values())).values()))
        return {
            "chance": first.chance,
            "untrained": {
                init: {
                    str(depth): {
                        norm: {str(seed): _untrained(init, depth, norm, seed, width) for seed in seeds}
                        for norm in STYLES
                    }
                    for depth in depths
                }
                for init in INITS
            },
            "trained": {
                depth: {
                    norm: {str(seed): _trained(run) for seed, run in trained[f"{norm}-{depth}"].items()}
                    for norm in STYLES
                    if f"{norm}-{depth}" in trained
                }
                for depth in NAMED_DEPTHS
            },
        }

    def judge(self, measured: Measured) -> Judgement:
        """Two intervals per depth, after training; before it they are reported."""
        trained, left_out = learned(measured)
        found = list(_compared(trained, "after training"))
        compared = any("minus" in one.what for one in found)
        outcomes: list[Outcome] = [one.outcome for one in found if one.outcome is not None]
        for init, by_depth in measured["untrained"].items():
            found += [replace(one, outcome=None) for one in _compared(by_depth, f"before training, {init}")]
        found += _reported(measured["untrained"], trained)
        words = _in_words(trained)
        if left_out:
            words += f" Left out, because it had learned nothing: {', '.join(left_out)}."
        return Judgement(tuple(found), words, together(outcomes if compared else [*outcomes, "undecided"]))

    def figure(self, measured: Measured) -> Figure:
        """Share of attention by layer, the mean over seeds."""
        groups = {f"before training, {init}": by_depth for init, by_depth in measured["untrained"].items()}
        groups["after training"] = learned(measured)[0]
        panels = [
            Panel(
                title=title,
                x="layer",
                y="norm of attention over norm of the stream",
                series=[_series(norm, by_seed) for runs in by_depth.values() for norm, by_seed in runs.items()],
                log_y=True,
            )
            for title, by_depth in groups.items()
        ]
        return Figure("How much attention adds to the stream, by layer; mean over seeds.", panels)


def quarters(shares: Sequence[float]) -> float:
    """Mean of the last quarter over mean of the first.

    >>> quarters([4.0, 4.0, 3.0, 3.0, 2.0, 2.0, 1.0, 1.0])
    0.25
    """
    some = max(1, len(shares) // 4)
    return sum(shares[-some:]) / sum(shares[:some])


def _untrained(init: str, depth: int, norm: str, seed: int, width: int) -> dict[str, Any]:
    config = ViTConfig(depth=depth, dim=width, heads=3, hidden=4 * width, norm=norm, init=init, patch=4, classes=10)
    model = ViT(config, seed=seed)
    seen, noise = branch_shares(model, [_gratings(seed)]), branch_shares(model, [_noise(seed)])
    return _kept(seen) | {"on_noise": quarters([layer["attention"] for layer in noise])}


def _kept(layers: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    return {
        "attention": [layer["attention"] for layer in layers],
        "mlp_ratio": quarters([layer["mlp"] for layer in layers]),
    }


def _trained(run: Trained) -> dict[str, Any]:
    """A run that was stopped has not been looked at."""
    shares = run.looked.get("branches")
    return {"accuracy": run.accuracy, **(_kept(shares) if shares else {"attention": None, "mlp_ratio": None})}


def _gratings(seed: int) -> Tensor:
    images: Tensor = Normalise(CIFAR10_MEAN, CIFAR10_STD)(synthetic_images(10, 1, IMAGES, seed=seed).test_images)
    return images


def _noise(seed: int) -> Tensor:
    return torch.randn(IMAGES, 3, 32, 32, generator=torch.Generator().manual_seed(seed))


def learned(measured: Measured) -> tuple[dict[str, Any], list[str]]:
    """Trained runs that learned something, as {depth: {norm: {seed: …}}}, and the names of the others."""
    kept: dict[str, Any] = {}
    left_out = []
    for depth, by_norm in measured["trained"].items():
        for norm, by_seed in by_norm.items():
            for seed, run in by_seed.items():
                shares = run["attention"]
                if run["accuracy"] > GUESSES * measured["chance"] and shares and None not in shares:
                    kept.setdefault(depth, {}).setdefault(norm, {})[seed] = run
                else:
                    left_out.append(f"{norm}-{depth} of seed {seed}")
    return kept, left_out


def ratios(by_seed: Mapping[str, Any]) -> dict[int, float]:
    """Attention's share in the last quarter over that in the first, by seed."""
    return {int(seed): quarters(run["attention"]) for seed, run in by_seed.items()}


def blocks(by_norm: Mapping[str, Any]) -> int:
    """How many there really are: at the smaller scales a variant is shallower than its name says."""
    return len(next(run["attention"] for by_seed in by_norm.values() for run in by_seed.values()))


def _compared(by_depth: Mapping[str, Any], when: str) -> Iterator[Finding]:
    """Pre-norm's ratio, and post-norm's minus pre-norm's, the deepest first."""
    for runs in reversed(list(by_depth.values())):
        where = f"{when}, {blocks(runs)} blocks"
        if pre := ratios(runs.get("pre", {})):
            ratio = over_seeds(list(pre.values()))
            yield Finding(f"attention's share, last quarter over first, pre-norm {where}", ratio, below(ratio, 1.0))
        post = ratios(runs.get("post", {}))
        if pre.keys() & post.keys():
            gap = paired(post, pre)
            yield Finding(f"the same, post-norm minus pre-norm {where}", gap, above(gap))


def _reported(untrained: Mapping[str, Any], trained: Mapping[str, Any]) -> Iterator[Finding]:
    """Post-norm by itself, the MLP, and noise in place of images."""
    groups = {"after training": trained, **{f"before training, {init}": runs for init, runs in untrained.items()}}
    for when, by_depth in groups.items():
        for runs in reversed(list(by_depth.values())):
            for norm, by_seed in runs.items():
                where = f"{norm}-norm {when}, {blocks(runs)} blocks"
                if norm == "post":
                    found = over_seeds(list(ratios(by_seed).values()))
                    yield Finding(f"attention's share, last quarter over first, {where}", found)
                    continue
                mlp = over_seeds([run["mlp_ratio"] for run in by_seed.values()])
                yield Finding(f"the MLP's share, last quarter over first, {where}", mlp)
                if when != "after training":
                    noise = over_seeds([run["on_noise"] for run in by_seed.values()])
                    yield Finding(f"attention's share on noise, last quarter over first, {where}", noise)


def _in_words(trained: Mapping[str, Any]) -> str:
    means = [
        f"{norm}-norm with {blocks(runs)} blocks {over_seeds(list(ratios(by_seed).values())).value:.2f}"
        for runs in trained.values()
        for norm, by_seed in runs.items()
    ]
    if not means:
        return "No trained model to speak of."
    return f"After training, attention's share in the last quarter of the layers over the first: {', '.join(means)}."


def _series(norm: str, by_seed: Mapping[str, Any]) -> Series:
    by_layer = list(zip(*(run["attention"] for run in by_seed.values()), strict=True))
    means = [sum(values) / len(values) for values in by_layer]
    return Series(f"{norm}-norm, {len(means)} layers", list(range(1, len(means) + 1)), means)
