"""More than one number per layer: a spectrum, a histogram, or one number for every other layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class ProfileLine:
    """The numbers of one layer: `values[i]` is at `at[i]` of the axis, NaN where there is none.

    Each is a mean over `sequences` sequences.
    """

    layer: int
    at: tuple[float, ...]
    values: tuple[float, ...]
    sequences: int


@dataclass(frozen=True)
class Profile:
    """The numbers behind a metric at one site, layer by layer.

    Attributes:
        metric: The metric's name in the scan.
        site: The site.
        axis: What `at` counts: "cosine", "frequency", or "layer" for one number for every two layers.
        meaning: What a number is.
        lines: By layer.
        stack: The stack of a model that has several.
    """

    metric: str
    site: str
    axis: str
    meaning: str
    lines: tuple[ProfileLine, ...]
    stack: str = ""

    def to_frame(self) -> pandas.DataFrame:
        """A tidy frame: layer, at, value.

        >>> line = ProfileLine(0, (0.0, 1.0), (1.0, 0.5), sequences=8)
        >>> Profile("linear_cka", "residual", "layer", "linear CKA", (line,)).to_frame().values.tolist()
        [[0.0, 0.0, 1.0], [0.0, 1.0, 0.5]]
        """
        import pandas

        rows = [(line.layer, at, value) for line in self.lines for at, value in zip(line.at, line.values, strict=True)]
        return pandas.DataFrame(rows, columns=["layer", "at", "value"])
