"""What is registered of a grid before it runs: data, networks, training, factors and rules."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import unsmooth
from unsmooth.errors import expected, unknown_name
from unsmooth.files import read_json
from unsmooth.networks import Decoder, DecoderConfig, ViT, ViTConfig
from unsmooth.schema import parse


@dataclass(frozen=True)
class Knobs:
    """The knobs; None leaves things as they are.

    Branches are multiplied before they are added, the token mean of attention's output apart from the rest of it, and
    the gradient that the head hands down on its way through the last layer; learning rates follow the layer.

    Attributes:
        branch: What both branches are multiplied by.
        token_mean: What the token mean of attention's output is multiplied by: 0 takes it out, as de-escalation does,
            and numbers above 1 make tokens more alike.
        head_gradient: What the gradient of the loss to the output of the last block is multiplied by. The head sees
            its own as it is, and the forward pass is the same.
        block_gradient: What the gradient is multiplied by on its way back through each block, the forward pass being
            the same: by depth the ratio of the first block's gradient to the last one's is that to the power of it.
        layer_rates: Of the first and of the last block: what their learning rates are multiplied by, in between in
            even ratios. That of embedding and head stays.
    """

    branch: float | None = None
    token_mean: float | None = None
    head_gradient: float | None = None
    block_gradient: float | None = None
    layer_rates: tuple[float, ...] | None = None

    def turn(self, network: nn.Module) -> None:
        """Have the blocks of one of our networks do so."""
        blocks: Any = network.stack.blocks  # type: ignore[union-attr]
        for block in blocks:
            if self.token_mean is not None:
                block.attention_path.register_forward_hook(partial(_more_mean, by=self.token_mean))
            if self.branch is not None:
                for path in (block.attention_path, block.mlp_path):
                    path.register_forward_hook(partial(_times, by=self.branch))
            if self.block_gradient is not None:
                block.register_forward_hook(partial(_less_gradient, by=self.block_gradient))
        if self.head_gradient is not None:
            blocks[-1].register_forward_hook(partial(_less_gradient, by=self.head_gradient))

    def rates(self, names: Iterable[str], depth: int) -> dict[str, float]:
        """What the learning rate of each parameter is multiplied by.

        >>> Knobs(layer_rates=(1.0, 0.01)).rates(["stack.blocks.1.mlp.up.weight", "head.weight"], 3)
        {'stack.blocks.1.mlp.up.weight': 0.1, 'head.weight': 1.0}
        """
        found = dict.fromkeys(names, 1.0)
        for name in found if self.layer_rates is not None else ():
            first, last = self.layer_rates or (1.0, 1.0)
            if name.startswith("stack.blocks."):
                share = int(name.split(".")[2]) / max(1, depth - 1)
                found[name] = first ** (1 - share) * last**share
        return found


def _times(module: nn.Module, args: Any, out: Tensor, *, by: float) -> Tensor:
    return out * by


def _more_mean(module: nn.Module, args: Any, out: Tensor, *, by: float) -> Tensor:
    return out + (by - 1) * out.mean(dim=1, keepdim=True)


def _less_gradient(module: nn.Module, args: Any, out: Tensor, *, by: float) -> Tensor:
    return out.detach() + by * (out - out.detach())


HOME = Path(__file__).parent / "registrations"
# The widths of one head and of the MLP in relation to the stream's, the same in every grid.
HEAD, HIDDEN = 16, 4


@dataclass(frozen=True)
class Data:
    """What is trained on and tested on: images, so many of each split, evenly over the classes; or a text.

    Attributes:
        name: Of the data set: "cifar100", or the name of a text.
        train: Images, or characters, to train on.
        test: Images, or characters, to test on.
        digest: Of pixels and labels, or characters, in order.
        length: Characters in a sample; None for images.
        classes: Different characters; None for images, whose names say it.
    """

    name: str
    train: int
    test: int
    digest: str
    length: int | None = None
    classes: int | None = None

    @property
    def chance(self) -> float:
        """The cross-entropy of who knows nothing, H₀: classes are equally frequent.

        >>> round(Data("cifar100", 20000, 2000, "").chance, 3)
        4.605
        """
        return math.log(self.classes or int(self.name.removeprefix("cifar")))


@dataclass(frozen=True)
class Training:
    """How every member is trained.

    Attributes:
        steps: Of the optimiser.
        warmup: Steps of it over which the rate rises; then it falls by a cosine to 0.
        batch: Images in a step.
        weight_decay: Of matrices.
        clip: The largest norm of a gradient.
        shift: Training images are mirrored with even chance and moved by up to so many pixels, the mean colour coming
            in; None leaves them as they are.
    """

    steps: int
    warmup: int
    batch: int = 96
    weight_decay: float = 0.05
    clip: float = 1.0
    shift: int | None = None


@dataclass(frozen=True)
class Family:
    """A kind of network: where its norms stand, its remedies with their options, and what else is set.

    Attributes:
        norm: As in `unsmooth.networks`; "none" for a linear map of the pixels, without any block.
        remedies: Name to options.
        knobs: What is set by hand, for studies of causes.
        alone: Whether its members are trained one by one: its remedies have parameters that no ensemble can stack.
    """

    norm: str
    remedies: Mapping[str, Mapping[str, Any]]
    knobs: Knobs | None = None
    alone: bool | None = None


@dataclass(frozen=True)
class Piece:
    """One family at one depth and width.

    >>> Piece("post", 24, 64).name
    'post-24-64'
    """

    family: str
    depth: int
    width: int

    @property
    def name(self) -> str:
        """What its file is called."""
        return f"{self.family}-{self.depth}-{self.width}"


@dataclass(frozen=True)
class Member:
    """One training.

    Attributes:
        gain: σ·√width of the blocks' matrices, or "xavier" for Xavier's uniform ones.
        rate: The largest learning rate.
        seed: Of weights and the order of data.
        steps: Of the optimiser.
    """

    gain: float | str
    rate: float
    seed: int
    steps: int


@dataclass(frozen=True)
class Contrast:
    """Two configurations that are compared over seeds, each at its own best rate; or two rows of them by depth.

    Attributes:
        first: Names of pieces; one, or several of rising depth.
        second: As many.
        gain: Of all of them.
        measure: What is compared: "test" (accuracy) or "test_loss".
        claim: What it decides together with the other contrasts of that name; None where it is told alone.
        side: On which side of the margin it lies if the claim is right: "above" or "below".
        margin: That first minus second is held against; of the slope over log2 of depth where there are several.
    """

    first: tuple[str, ...]
    second: tuple[str, ...]
    gain: float | str
    measure: str = "test"
    claim: str | None = None
    side: str = "above"
    margin: float = 0.0

    @property
    def name(self) -> str:
        """In words.

        >>> Contrast(("post-12-64", "post-24-64"), ("pre-12-64", "pre-24-64"), "xavier").name
        'test: post-12-64, post-24-64 minus pre-12-64, pre-24-64 at xavier, by doubling of depth'
        """
        by = ", by doubling of depth" if len(self.first) > 1 else ""
        return f"{self.measure}: {', '.join(self.first)} minus {', '.join(self.second)} at {self.gain}{by}"


@dataclass(frozen=True, kw_only=True)
class Registration:
    """A grid as it was registered. What is None adds nothing to its digest, so that new fields change no old one.

    Attributes:
        name: Of the grid.
        question: What it is to answer.
        data: What is trained on.
        patch: Side of a patch; None for text.
        training: How; with 0 steps, networks are looked at as they start and nothing is trained.
        families: By name.
        pieces: Lists of families, depths and widths, all combinations of which are pieces, in order of importance.
        gains: Of the initial weights in the blocks.
        rates: Learning rates with which each configuration is trained.
        ladder: All rates that may be used: where the best is at an end of those tried, the next one is tried too.
        seeds: Of weights and order of data.
        more_seeds: Trained in addition at the best rate.
        longer: A configuration that neither trains nor fails is trained again for so many times the steps; 1 for none.
        rules: How results are judged, in words; numbers of rules that code reads are in `limits`.
        limits: Of skill: above "trains" it trains, below "fails" it fails.
        budget: What it is to cost, in words.
        contrasts: What is compared.
        look: What else is looked at, and judged: "attention" at the start, "spectra" of H after training, "causes".
        after: A registration whose verdict has to be "go on" before this one is run.
    """

    name: str
    question: str
    data: Data
    patch: int | None = None
    training: Training
    families: Mapping[str, Family]
    pieces: tuple[Mapping[str, Any], ...]
    gains: tuple[float | str, ...]
    rates: tuple[float, ...]
    ladder: tuple[float, ...]
    seeds: tuple[int, ...]
    more_seeds: tuple[int, ...]
    longer: int
    rules: Mapping[str, str]
    limits: Mapping[str, float]
    budget: str
    contrasts: tuple[Contrast, ...] | None = None
    look: tuple[str, ...] | None = None
    after: str | None = None

    @property
    def digest(self) -> str:
        """Of everything that is registered."""
        return hashlib.sha256(json.dumps(_said(asdict(self)), sort_keys=True).encode()).hexdigest()[:16]

    def all_pieces(self) -> list[Piece]:
        """Every piece, in the order of the registration."""
        found = [
            Piece(family, depth, width)
            for group in self.pieces
            for depth in group["depths"]
            for width in group["widths"]
            for family in group["families"]
        ]
        return list(dict.fromkeys(found))

    def members(self) -> list[Member]:
        """Those with which every piece begins."""
        steps = self.training.steps
        return [Member(gain, rate, seed, steps) for gain in self.gains for rate in self.rates for seed in self.seeds]

    def starts(self) -> list[tuple[float | str, int]]:
        """Gains and seeds of the networks that are looked at where nothing is trained."""
        return [] if self.training.steps else [(gain, seed) for gain in self.gains for seed in self.seeds]

    def tokens(self, image: int = 32) -> int:
        """Of one sample, the class token of an image among them."""
        return self.data.length or (image // (self.patch or image)) ** 2 + 1

    def network(self, piece: Piece, gain: float | str, seed: int, classes: int, image: int = 32) -> nn.Module:
        """A network as it starts: all but the blocks' matrices are the same whatever the gain."""
        family = self.families[piece.family]
        network = self._plain(piece, family.norm, seed, classes, image)
        if not isinstance(gain, str) and family.norm != "none":
            generator = torch.Generator().manual_seed(seed)
            for parameter in network.stack.parameters():  # type: ignore[union-attr]
                if parameter.ndim > 1:
                    with torch.no_grad():
                        parameter.normal_(0.0, gain / piece.width**0.5, generator=generator)
        for name, options in family.remedies.items():
            unsmooth.apply(network, name, **options)
        if family.knobs is not None:
            family.knobs.turn(network)
        return network

    def _plain(self, piece: Piece, norm: str, seed: int, classes: int, image: int) -> nn.Module:
        """Without remedies, with Xavier's weights."""
        shape: dict[str, Any] = {
            "depth": piece.depth,
            "dim": piece.width,
            "heads": max(1, piece.width // HEAD),
            "hidden": HIDDEN * piece.width,
            "norm": norm,
            "init": "xavier",
        }
        if norm == "none":
            linear = nn.Sequential(nn.Flatten(), nn.Linear(3 * image**2, classes))
            for parameter in linear.parameters():
                nn.init.zeros_(parameter)
            return linear
        if self.data.length is not None:
            text = DecoderConfig(**shape, vocabulary=classes, length=self.data.length, positions="sinusoidal")
            return Decoder(text, seed)
        return ViT(ViTConfig(**shape, image=image, patch=self.patch or image, classes=classes), seed)


def _said(values: Any) -> Any:
    """Plain data without what is None in it."""
    if isinstance(values, Mapping):
        return {name: _said(value) for name, value in values.items() if value is not None}
    return [_said(value) for value in values] if isinstance(values, list | tuple) else values


def registered(name: str) -> Registration:
    """A registration of this package by its name, or of a file.

    >>> registered("nosuch")
    Traceback (most recent call last):
    unsmooth.errors.UnsmoothError: Expected a known registration but got 'nosuch'. Known: ...
    """
    path = Path(name) if name.endswith(".json") else HOME / f"{name}.json"
    if not path.is_file():
        raise unknown_name("registration", name, [found.stem for found in HOME.glob("*.json")])
    registration = parse(Registration, read_json(path), where=str(path))
    wrong = sorted(set(registration.rates) - set(registration.ladder))
    if wrong or list(registration.ladder) != sorted(registration.ladder):
        raise expected("a rising ladder with all rates on it", wrong or registration.ladder, "adding them")
    names = [contrast.name for contrast in registration.contrasts or ()]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise expected(f"each contrast of {registration.name} once", f"{twice[0]!r} twice", "leaving one out")
    return registration
