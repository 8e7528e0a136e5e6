"""What is registered of a grid before it runs: data, networks, training, factors and rules."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

import unsmooth
from unsmooth.errors import expected, unknown_name
from unsmooth.files import read_json
from unsmooth.networks import ViT, ViTConfig
from unsmooth.schema import parse

HOME = Path(__file__).parent / "registrations"
# The widths of one head and of the MLP in relation to the stream's, the same in every grid.
HEAD, HIDDEN = 16, 4


@dataclass(frozen=True)
class Data:
    """Images that are trained on and tested on: so many of each split, evenly over the classes.

    Attributes:
        name: Of the data set.
        train: Images to train on.
        test: Images to test on.
        digest: Of their pixels and labels, in order.
    """

    name: str
    train: int
    test: int
    digest: str


@dataclass(frozen=True)
class Training:
    """How every member is trained.

    Attributes:
        steps: Of the optimiser.
        warmup: Steps of it over which the rate rises; then it falls by a cosine to 0.
        batch: Images in a step.
        weight_decay: Of matrices.
        clip: The largest norm of a gradient.
    """

    steps: int
    warmup: int
    batch: int = 96
    weight_decay: float = 0.05
    clip: float = 1.0


@dataclass(frozen=True)
class Family:
    """A kind of network: where its norms stand, and its remedies with their options."""

    norm: str
    remedies: Mapping[str, Mapping[str, Any]]


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
class Registration:
    """A grid as it was registered.

    Attributes:
        name: Of the grid.
        question: What it is to answer.
        data: What is trained on.
        patch: Side of a patch.
        training: How.
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
    """

    name: str
    question: str
    data: Data
    patch: int
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

    @property
    def digest(self) -> str:
        """Of everything that is registered."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:16]

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

    def tokens(self, image: int = 32) -> int:
        """Of one image, the class token among them."""
        return (image // self.patch) ** 2 + 1

    def network(self, piece: Piece, gain: float | str, seed: int, classes: int, image: int = 32) -> ViT:
        """A network as it starts: all but the blocks' matrices are the same whatever the gain."""
        family = self.families[piece.family]
        config = ViTConfig(
            depth=piece.depth,
            dim=piece.width,
            heads=max(1, piece.width // HEAD),
            hidden=HIDDEN * piece.width,
            norm=family.norm,
            image=image,
            patch=self.patch,
            classes=classes,
            init="xavier",
        )
        network = ViT(config, seed)
        if not isinstance(gain, str):
            generator = torch.Generator().manual_seed(seed)
            for parameter in network.stack.parameters():
                if parameter.ndim > 1:
                    with torch.no_grad():
                        parameter.normal_(0.0, gain / piece.width**0.5, generator=generator)
        for name, options in family.remedies.items():
            unsmooth.apply(network, name, **options)
        return network


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
    return registration
