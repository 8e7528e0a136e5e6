"""How much is done for a claim."""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

from unsmooth.errors import unknown_name

Scale: TypeAlias = Literal["tiny", "small", "full"]
"""tiny: seconds on two CPU cores, to see that everything runs. small: minutes. full: the most that was run here,
which verdicts rest on; it is not the scale of the papers."""

SCALES: tuple[Scale, ...] = get_args(Scale)

SEEDS: dict[Scale, tuple[int, ...]] = {"tiny": (0, 1), "small": (0, 1, 2), "full": (0, 1, 2)}
"""Of training runs. A seed decides weights, order of data, augmentation: variants with the same one are paired."""


def known_scale(name: str) -> Scale:
    """The scale of that name.

    >>> known_scale("small")
    'small'
    """
    for scale in SCALES:
        if scale == name:
            return scale
    raise unknown_name("scale", name, SCALES)
