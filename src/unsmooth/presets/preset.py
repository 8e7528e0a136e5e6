"""What a preset fixes and where it comes from, and the table of all presets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from unsmooth.errors import expected
from unsmooth.functional import parse_metric
from unsmooth.registry import Registry

Basis = Literal["code", "thread", "paper", "reconstructed"]
BASES: Mapping[str, str] = {
    "code": "read off the authors' code",
    "thread": "read off code in a public thread",
    "paper": "as the paper writes it; its code for this is not public",
    "reconstructed": "reconstructed: the code is not public, and the text does not settle all of it",
}
"""What the definition rests on."""
Need = Literal["class token", "words"]


@dataclass(frozen=True)
class Preset:
    """A definition that somebody published, as settings of a scan.

    Args:
        name: What it is asked for by.
        summary: The definition in one line.
        metrics: The metric with its options, as a scan takes it; where there are several, the first is the curve.
        tokens: "content" leaves class tokens and other special tokens out, "all" does not.
        sites: Where in each block; where there are several, the published curve runs through all of them.
        aggregation: How values of sequences become one number.
        source: Paper, repository, file or thread.
        basis: What the definition rests on, see `BASES`.
        quantity: What the number is. Presets of one quantity are on one scale and can be compared.
        unknown: What the source leaves open, and what is done here.
        differs: Where this is not what the source does, and why.
        needs: What a model must have. "class token": exactly one token of its own in front of the patches of an image;
            "words": token ids.
        minus: A metric that is taken off the first one, layer by layer.
    """

    name: str
    summary: str
    metrics: tuple[str, ...]
    tokens: Literal["content", "all"]
    sites: tuple[str, ...]
    aggregation: str
    source: str
    basis: Basis
    quantity: str
    unknown: tuple[str, ...] = ()
    differs: tuple[str, ...] = ()
    needs: tuple[Need, ...] = ()
    minus: str | None = None

    def __post_init__(self) -> None:
        for metric in self.measured:
            parse_metric(metric)  # a definition that no scan could measure is refused where it is written

    @property
    def measured(self) -> tuple[str, ...]:
        """All metrics that a scan must measure for it."""
        return self.metrics if self.minus is None else (*self.metrics, self.minus)

    @property
    def curve(self) -> str:
        """The name of its curve in a scan.

        >>> PRESETS["vita"].curve, PRESETS["ethayarajh_intra_sentence"].curve
        ('mean_cosine(absolute=True, with_self=True)', 'intra_sentence_similarity − random_pair_cosine')
        """
        first = parse_metric(self.metrics[0]).name
        return first if self.minus is None else f"{first} − {parse_metric(self.minus).name}"

    def describe(self) -> dict[str, Any]:
        """All of it by name, for files and lists."""
        return {**asdict(self), "basis": BASES[self.basis]}


def _accept(found: Any) -> tuple[str, Preset]:
    """What an entry point may name: a preset."""
    if not isinstance(found, Preset):
        raise expected("an unsmooth.presets.Preset", repr(found), "the preset itself")
    return found.name, found


PRESETS = Registry[Preset]("preset", home="unsmooth.presets.catalogue", group="unsmooth.presets", accept=_accept)


def register(preset: Preset) -> Preset:
    """Put one of our own presets into the table."""
    return PRESETS.add(preset.name, preset)
