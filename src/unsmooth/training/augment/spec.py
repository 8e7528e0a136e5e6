"""The short text in which recipes write down a RandAugment policy."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from unsmooth.errors import expected, unknown_name

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
