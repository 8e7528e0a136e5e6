"""Negating the weight of a norm before attention turns a smoothing layer into a sharpening one, and back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from numpy.random import Generator
from torch import Tensor, nn

from unsmooth.errors import UnsmoothError
from unsmooth.evidence.bench import Bench
from unsmooth.evidence.claim import Claim, Measured, Section, Source, claim
from unsmooth.evidence.claims._one_layer import branch, definite, peaked_or_flat, turning, unit_stream
from unsmooth.evidence.claims._random_layers import generator, tokens
from unsmooth.evidence.figure import Figure, Panel, Series, with_intervals
from unsmooth.evidence.finding import Finding, Judgement, Wording, above, judged, never
from unsmooth.evidence.interval import over_seeds, share
from unsmooth.models import demo
from unsmooth.models.load import load
from unsmooth.networks import Block, ViT, ViTConfig
from unsmooth.remedies import apply
from unsmooth.scanning import scan
from unsmooth.theory import iterate
from unsmooth.theory.iterate import Place

LAYERS, DIM = 12, 16
SCALES = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
FRACTIONS = tuple(eighths / 8 for eighths in range(9))
OFTEN, SAME = 0.95, 1e-9
Counts = dict[str, list[int]]


@dataclass(frozen=True)
class _Layer:
    """A draw: stream of standard deviation 1, attention, H with a spectrum of one sign, norm weight, and that sign."""

    x: Tensor
    attention: Tensor
    h: Tensor
    weight: Tensor
    smooths: bool


@claim
class NormSignFlips(Claim):
    """Directions of t_sim with γ and −γ, in one layer and over twelve, and in whole networks."""

    id: ClassVar[str] = "norm-sign-flips"
    number: ClassVar[int] = 3
    section: ClassVar[Section] = "identities checked numerically"
    quote: ClassVar[str] = (
        "The sign of LayerNorm's weights acts on the eigenvalues of H: negated weights turn smoothing into sharpening."
    )
    wording: ClassVar[Wording] = "reconstructed"
    source: ClassVar[Source] = Source(
        "P1", "v3", "on the sign of layer normalization weights; how it acts is derived here"
    )
    reading: ClassVar[str] = (
        "In X + A N(X; γ) H, negating the norm's weight γ negates the effective eigenvalues, so that a layer that "
        "makes tokens more alike makes them less alike, and the other way round."
    )
    differs: ClassVar[str] = (
        "The abstract says that the sign can influence smoothing, not how. One layer and twelve, with symmetric H "
        "of one sign, in a stream of standard deviation 1."
    )
    would_decide: ClassVar[str] = (
        "Nothing is left to decide about the idealised layer; for trained models see negative-norm-weights."
    )
    for_if: ClassVar[str] = (
        "in a stream of standard deviation 1, with symmetric H of one sign, eigenvalues of modulus 0.05 to 1 and γ "
        "from 0.5 to 1.5, the 95 % intervals of the shares of draws in which t_sim rises with one sign and falls with "
        f"the other, as H says, lie above {OFTEN:g}, after one layer and after {LAYERS}; and no draw violates, at any "
        "scale, the closed form for the scale above which the two signs differ in one layer (95 % interval of the "
        "share of violations below 0.01)"
    )
    against_if: ClassVar[str] = f"one of the two intervals lies below {OFTEN:g}, or the closed form is violated"

    def seeds(self, bench: Bench) -> tuple[int, ...]:
        """A seed is some layers, and a network of each kind."""
        return tuple(range(bench.pick(2, 10, 25)))

    def measure(self, bench: Bench) -> dict[str, Any]:
        """Counts by scale and by share of negated channels; curves of networks."""
        seeds = self.seeds(bench)
        layers = list(_layers(seeds, draws=bench.pick(2, 20, 20)))
        return {
            **by_scale(layers),
            "fractions": by_fraction(layers),
            "post_norm_same": post_norm(layers),
            "no_sign": without_sign(seeds, draws=bench.pick(2, 20, 20)),
            "networks": drawn_networks(seeds[: bench.pick(1, 5, 10)]),
            "trained": trained_networks(batches=bench.pick(2, 4, 8)),
        }

    def judge(self, measured: Measured) -> Judgement:
        """Two shares and a count; the rest is reported."""
        one, many = (share(*measured[key]["1"]) for key in ("one_layer", "many_layers"))
        findings = [
            Finding("turns round in one layer at scale 1, share of draws", one, above(one, OFTEN)),
            Finding(f"turns round over {LAYERS} layers at scale 1, share of draws", many, above(many, OFTEN)),
            never("one layer turns round at another scale than its closed form says", *measured["missed"]),
            Finding("turns round in one layer at scale 0.02, share of draws", share(*measured["one_layer"]["0.02"])),
            Finding("turns round with half of the channels negated", share(*measured["fractions"]["0.5"])),
            Finding("goes two ways in one layer, H without a sign", share(*measured["no_sign"])),
            Finding("post-norm: t_sim is the same at every layer with −γ", share(*measured["post_norm_same"])),
            *_of_networks("untrained ViT", measured["networks"]),
            *_of_networks("trained ViT", measured["trained"] or {}),
        ]
        small = share(*measured["one_layer"]["0.02"]).value
        words = (
            f"Negating γ turned {one.value:.1%} of layers round at scale 1 and {many.value:.1%} of stacks of {LAYERS}. "
            f"At scale 0.02 it turned {small:.0%} of layers: there the branch outweighs the stream, and its sign does "
            "not matter. Behind the addition (post-norm) γ multiplies the stream too, and its sign changes no t_sim."
        )
        return judged(findings, words)

    def figure(self, measured: Measured) -> Figure:
        """By scale, by share of channels, and by layer of a network."""
        scales = [_shares("one layer", measured["one_layer"]), _shares(f"{LAYERS} layers", measured["many_layers"])]
        networks = measured["trained"] or measured["networks"]
        kind = "trained" if measured["trained"] else "untrained"
        return Figure(
            "How often negating the norm's weight turns the direction of t_sim round: by the stream's standard "
            "deviation, and by the share of channels whose weight is negated; 95 % intervals. Right: whole networks.",
            [
                Panel("all channels", "scale of the stream", "share", scales, log_x=True, reference=OFTEN),
                Panel("some channels", "share negated", "share", [_shares("one layer", measured["fractions"])]),
                Panel(f"{kind} ViT", "layer", "t_sim", list(_by_layer(networks))),
            ],
        )


def by_scale(layers: Sequence[_Layer]) -> dict[str, Any]:
    """Counts [turned round, tried] by scale, after one layer and after twelve; and violations of the closed form."""
    one: Counts = {f"{scale:g}": [0, 0] for scale in SCALES}
    many: Counts = {f"{scale:g}": [0, 0] for scale in SCALES}
    missed = 0
    for layer in layers:
        closed = turning(layer.x, branch(layer.x, layer.attention, layer.h, layer.weight))
        wrong = False
        for scale in SCALES:
            plus, minus = (_similarity(layer, sign * layer.weight, scale) for sign in (1.0, -1.0))
            _count(one[f"{scale:g}"], _turned(plus[:2], minus[:2], layer.smooths))
            _count(many[f"{scale:g}"], _turned(plus, minus, layer.smooths))
            differ = (plus[1] > plus[0]) != (minus[1] > minus[0])
            wrong |= differ != (scale > closed.scale)
        missed += wrong
    return {"one_layer": one, "many_layers": many, "missed": [missed, len(layers)]}


def by_fraction(layers: Sequence[_Layer]) -> Counts:
    """Counts of layers, at scale 1, whose direction is another when a share of the channels has −γ."""
    found: Counts = {f"{fraction:g}": [0, 0] for fraction in FRACTIONS}
    for index, layer in enumerate(layers):
        order = torch.from_numpy(generator(index, 7).permutation(DIM))
        before, after = _similarity(layer, layer.weight, layers=1)
        for fraction in FRACTIONS:
            signs = torch.ones(DIM, dtype=torch.float64)
            signs[order[: round(fraction * DIM)]] = -1.0
            other = _similarity(layer, signs * layer.weight, layers=1)[1]
            _count(found[f"{fraction:g}"], (other > before) != (after > before))
    return found


def post_norm(layers: Sequence[_Layer]) -> list[int]:
    """In how many draws N(X + AXH; −γ) leaves t_sim as it is at every one of twelve layers, of so many."""
    counts = [0, 0]
    for layer in layers:
        plus, minus = (
            torch.tensor(_similarity(layer, sign * layer.weight, norm="post"), dtype=torch.float64)
            for sign in (1.0, -1.0)
        )
        _count(counts, bool((plus - minus).abs().max() < SAME))
    return counts


def without_sign(seeds: Sequence[int], draws: int) -> list[int]:
    """In how many draws with normal H, whose spectrum has no sign, γ and −γ lead two ways in one layer, of so many."""
    counts = [0, 0]
    for random in (generator(seed, 8, index) for seed in seeds for index in range(draws)):
        h = tokens(random, DIM, DIM) * (0.5 / float(torch.tensor(DIM).sqrt()))
        layer = _draw(random, h, smooths=True)
        (before, plus), (_, minus) = (_similarity(layer, sign * layer.weight, layers=1) for sign in (1.0, -1.0))
        _count(counts, (plus > before) != (minus > before))
    return counts


def _layers(seeds: Sequence[int], draws: int) -> Iterator[_Layer]:
    """Every other one with a positive spectrum."""
    for seed in seeds:
        for index in range(draws):
            random, smooths = generator(seed, 6, index), index % 2 == 0
            h = definite(random, DIM, 0.05, 1.0)
            yield _draw(random, h if smooths else -h, smooths)


def _draw(random: Generator, h: Tensor, smooths: bool) -> _Layer:
    n = int(random.integers(8, 17))
    attention, x = peaked_or_flat(random, n), unit_stream(random, n, DIM)
    return _Layer(x, attention, h, torch.from_numpy(random.uniform(0.5, 1.5, size=DIM)), smooths)


def _similarity(
    layer: _Layer, weight: Tensor, scale: float = 1.0, layers: int = LAYERS, norm: Place = "pre"
) -> list[float]:
    run = iterate(scale * layer.x, layer.attention, layer.h, depth=layers, norm=norm, norm_weight=weight)
    return [float(one) for one in run.token_similarity]


def _turned(plus: Sequence[float], minus: Sequence[float], smooths: bool) -> bool:
    """Whether t_sim rises with one sign and falls with the other, and which as the spectrum of diag(γ)H says."""
    up, down = (plus, minus) if smooths else (minus, plus)
    return up[-1] > up[0] and down[-1] < down[0]


def _count(counts: list[int], hit: bool) -> None:
    counts[0] += hit
    counts[1] += 1


def _of_networks(what: str, networks: Mapping[str, Sequence[Mapping[str, Sequence[float]]]]) -> Iterator[Finding]:
    for variant, measured in networks.items():
        gaps = [one["negated"][-1] - one["as it is"][-1] for one in measured]
        yield Finding(f"{what}, {variant}: t_sim at the last layer, negated minus as it is", over_seeds(gaps))


def _shares(name: str, counts: Mapping[str, Sequence[int]]) -> Series:
    found = {float(key): share(*both) for key, both in counts.items()}
    return with_intervals(name, list(found), found.values())


def _by_layer(networks: Mapping[str, Sequence[Mapping[str, Sequence[float]]]]) -> Iterator[Series]:
    for variant, measured in networks.items():
        for which in ("as it is", "negated"):
            means = [over_seeds(list(values)).value for values in zip(*(one[which] for one in measured), strict=True)]
            plain = which == "as it is"
            name = variant if plain else f"{variant}, negated"
            yield Series(name, list(range(len(means))), means, mark="line" if plain else "dashed")


VIT = ViTConfig(depth=6, dim=48, heads=3, hidden=96, image=16, patch=4, classes=10)
VARIANTS: dict[str, str | None] = {"plain": None, "sharpen": "sharpen", "smooth": "smooth"}
IMAGES, BATCH = 8, 8


def negate_attention_norms(model: nn.Module) -> None:
    """γ → −γ in the norm before attention, in every pre-norm block of a network of ours, in place.

    Queries and keys are both read through this norm, so without biases the attention of a block stays as it is. Trained
    networks have biases, in the norm too, which are not negated.
    """
    with torch.no_grad():
        for block in model.modules():
            if isinstance(block, Block) and block.style == "pre":
                block.norm_attention.weight.neg_()


def curves(model: nn.Module, images_BCHW: Tensor) -> dict[str, list[float]]:
    """The t_sim at every layer, embedding first: with the norms as they are, and negated; the model stays as it was."""
    found = {"as it is": _curve(model, images_BCHW)}
    negate_attention_norms(model)
    found["negated"] = _curve(model, images_BCHW)
    negate_attention_norms(model)
    return found


def drawn_networks(seeds: Sequence[int]) -> dict[str, list[dict[str, list[float]]]]:
    """Per variant and seed: curves of an untrained ViT with plain, sharpening and smoothing weights."""
    found: dict[str, list[dict[str, list[float]]]] = {}
    for variant, remedy in VARIANTS.items():
        for seed in seeds:
            model = ViT(VIT, seed=seed).eval()
            model = apply(model, remedy, basis="gram", eigenvalues="rescale") if remedy else model
            generator = torch.Generator().manual_seed(seed)
            images = torch.randn(IMAGES, VIT.channels, VIT.image, VIT.image, generator=generator)
            found.setdefault(variant, []).append(curves(model, images))
    return found


def trained_networks(batches: int) -> dict[str, list[dict[str, list[float]]]] | None:
    """Per model and batch of images: curves of the trained models that come with the package; None without them."""
    if not demo.built():
        return None
    found: dict[str, list[dict[str, list[float]]]] = {}
    for variant in demo.NAMES:
        try:
            model, images = load(f"{demo.PREFIX}{variant}"), demo.shown(f"{demo.PREFIX}{variant}", BATCH * batches)
        except UnsmoothError:
            return None
        found[variant] = [curves(model, images_BCHW) for images_BCHW in torch.split(images, BATCH)]
    return found


def _curve(model: nn.Module, images_BCHW: Tensor) -> list[float]:
    found: Any = scan(model, images_BCHW, metrics=["token_similarity"], progress=False)
    return [row.mean for row in found.curve("token_similarity")]
