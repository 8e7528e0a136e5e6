"""RandAugment: a few random operations in a row on each image, all images of a batch at once."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from unsmooth import keyed
from unsmooth.errors import expected, unknown_name
from unsmooth.training.augment.operations import IDENTITY, NAMES, Affine, Arguments, Blend, Lookup
from unsmooth.training.augment.transforms import happens

_FIELDS = {"m": "magnitude", "n": "number", "p": "probability", "mstd": "spread", "mmax": "most", "inc": "increasing"}
# From here on, timm takes a standard deviation to mean "any magnitude".
_AS_GOOD_AS_INFINITE = 100.0


@dataclass(frozen=True)
class RandSpec:
    """A RandAugment policy (Cubuk et al. 2019, arXiv 1909.13719) with the additions of the timm library.

    Attributes:
        magnitude: Mean strength on a scale from 0 to 10.
        number: Operations in a row for each image.
        probability: With which each of them is carried out.
        spread: Standard deviation of the strength; infinite for one that is uniform between 0 and `magnitude`.
        most: Strengths are cut to the range from 0 to here.
        increasing: Whether the strength of each operation grows with its magnitude.
    """

    magnitude: float = 10.0
    number: int = 2
    probability: float = 0.5
    spread: float = 0.0
    most: float = 10.0
    increasing: bool = False

    @classmethod
    def parse(cls, text: str) -> RandSpec:
        """Read "rand" and the settings behind it: m (magnitude), n (number), p, mstd (spread), mmax (most), inc.

        >>> RandSpec.parse("rand-m9-mstd0.5-inc1")
        RandSpec(magnitude=9.0, number=2, probability=0.5, spread=0.5, most=10.0, increasing=True)
        >>> RandSpec.parse("rand-m9-n2-mstdinf").spread
        inf
        """
        name, *parts = text.split("-")
        if name != "rand":
            raise expected("a policy that begins with 'rand'", repr(text), "'rand-m9-n2-mstd1.0'")
        values = dict(_read(part, text) for part in parts)
        if values.get("spread", 0.0) > _AS_GOOD_AS_INFINITE:
            values["spread"] = math.inf
        kinds = {"number": int, "increasing": bool}
        return cls(**{field: kinds.get(field, float)(value) for field, value in values.items()})

    def __post_init__(self) -> None:
        if self.number < 1 or self.most <= 0 or self.magnitude < 0 or not 0 <= self.probability <= 1:
            raise expected("n >= 1, m >= 0, mmax > 0 and p from 0 to 1", self, "'rand-m9-n2-mstd1.0'")


def _read(part: str, text: str) -> tuple[str, float]:
    found = re.fullmatch(r"([a-z]+?)(inf|\d+(?:\.\d*)?)", part)
    if found is None:
        raise expected("settings such as m9 or mstd0.5 between dashes", f"{part!r} in {text!r}", "'rand-m9-n2-mstd1.0'")
    if found[1] == "w":
        raise expected("operations that are all as likely", f"{part!r} in {text!r}", "the policy without it")
    if found[1] not in _FIELDS:
        raise unknown_name("setting of a rand policy", found[1], _FIELDS)
    return _FIELDS[found[1]], float(found[2])


INTERPOLATIONS = ("random", "bilinear", "bicubic")
_DRAWS = 5  # for each operation: which one, whether, how strong, which sign, which interpolation


class Choice(NamedTuple):
    """What is done to each image: (B, n) operations, their arguments, and whether they interpolate by cubics."""

    operation: Tensor
    argument: Tensor
    cubic: Tensor


class RandAugment(nn.Module):
    """Draw operations with replacement, carry each out with some probability at a random strength, as timm does.

    Each operation is what Pillow's is, to the bit for those without interpolation and to a last digit in float64 for
    the five with it (`benchmarks/augment_exactness.py` measures both). A Posterize to 0 bits gives black, as in the
    versions of Pillow that allowed it.

    All stages run for all images, with settings that change nothing where an operation belongs to another stage: shapes
    never depend on what is drawn, which CUDA graphs and compilers need. On a CPU only images that move are moved.

    Args:
        spec: The policy.
        fill: Grey levels of what comes in from outside; mean colour of the data set, by custom.
        interpolation: "bilinear", "bicubic", or "random" for either at even odds each time.

    Example:
        >>> from unsmooth import keyed
        >>> images = torch.arange(3 * 32 * 32).view(1, 3, 32, 32).to(torch.uint8)
        >>> policy = RandAugment.parse("rand-m9-n2-mstd1.0")
        >>> policy(images, keyed.keys(0, torch.arange(1))).dtype
        torch.uint8
    """

    def __init__(self, spec: RandSpec, fill: Sequence[int] = (128, 128, 128), interpolation: str = "random") -> None:
        super().__init__()
        if interpolation not in INTERPOLATIONS:
            raise unknown_name("interpolation", interpolation, INTERPOLATIONS)
        self.spec, self.interpolation = spec, interpolation
        self.draws = _DRAWS * spec.number
        self.arguments = Arguments(spec.increasing)
        self.lookup, self.blend, self.affine = Lookup(), Blend(), Affine(fill)

    @classmethod
    def parse(cls, text: str, fill: Sequence[int] = (128, 128, 128), interpolation: str = "random") -> RandAugment:
        """From a policy as recipes write it, such as "rand-m9-mstd0.5-inc1"."""
        return cls(RandSpec.parse(text), fill, interpolation)

    def forward(self, images_BCHW: Tensor, keys_B: Tensor) -> Tensor:
        """uint8 images and one key for each."""
        return self.with_keys(images_BCHW, keyed.derive(keys_B, self.draws))

    def with_keys(self, images_BCHW: Tensor, keys_BK: Tensor) -> Tensor:
        """The same with `draws` keys per image."""
        return self.carry_out(images_BCHW, self.choose(keys_BK))

    def choose(self, keys_BK: Tensor) -> Choice:
        """What is done to each image; an operation that is not carried out is `IDENTITY`."""
        which, whether, strength, sign, interpolation = keys_BK.reshape(-1, _DRAWS, self.spec.number).unbind(1)
        operation = torch.where(happens(whether, self.spec.probability), keyed.integers(which, len(NAMES)), IDENTITY)
        argument = self.arguments(operation, self._level(strength), happens(sign, 0.5))
        odds = {"random": 0.5, "bilinear": 0.0, "bicubic": 1.0}[self.interpolation]
        return Choice(operation, argument, happens(interpolation, odds))

    def carry_out(self, images_BCHW: Tensor, choice: Choice) -> Tensor:
        """Operations of one's own choice, one column after the other."""
        operation, argument, cubic = choice
        height, width = images_BCHW.shape[2:]
        tables, table_flags = self.lookup.plan(operation, argument)
        factors, kinds = self.blend.plan(operation, argument)
        matrices = self.affine.plan(operation, argument, height, width)
        pixels = images_BCHW.to(torch.int64).flatten(2)
        for slot in range(operation.shape[1]):
            looked_up = self.lookup(pixels, tables[:, slot], table_flags[:, slot]).view_as(images_BCHW)
            blended = self.blend(looked_up, factors[:, slot], kinds[:, slot])
            pixels = self._moved(blended, matrices[:, slot], cubic[:, slot])
        return pixels.to(torch.uint8).view_as(images_BCHW)

    def _moved(self, images_BCHW: Tensor, matrices_B23: Tensor, cubic_B: Tensor) -> Tensor:
        """Moving pixels is most of the work: where shapes may depend on what was drawn, only images that move do it."""
        if images_BCHW.device.type != "cpu" or torch.compiler.is_dynamo_compiling():
            everywhere: Tensor = self.affine(images_BCHW, matrices_B23, cubic_B)
            return everywhere
        pixels = images_BCHW.to(torch.int64).flatten(2)
        moving = (matrices_B23 != self.affine.still).flatten(1).any(1).nonzero()[:, 0]
        return pixels.index_copy(0, moving, self.affine(images_BCHW[moving], matrices_B23[moving], cubic_B[moving]))

    def _level(self, keys_Bn: Tensor) -> Tensor:
        """Strengths, in float64."""
        spec = self.spec
        if spec.spread == math.inf:
            level = keyed.uniform(keys_Bn).to(torch.float64) * spec.magnitude
        else:
            level = spec.magnitude + spec.spread * keyed.normal(keys_Bn).to(torch.float64)
        return level.clamp(0.0, spec.most)
