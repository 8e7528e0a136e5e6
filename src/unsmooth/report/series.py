"""From scans to curves: what is drawn, under which name, in which colour."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from unsmooth.errors import expected
from unsmooth.numbers import spoken

if TYPE_CHECKING:
    from unsmooth.scanning.result import Row, Scan

# Okabe & Ito (2008), safe for colour-blind readers; without its black and yellow, which vanish on dark and white.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#808080")


@dataclass(frozen=True)
class DrawnScan:
    """One scan as it is drawn; a baseline shares its scan's colour and is dashed."""

    name: str
    scan: Scan
    colour: str
    dashed: bool = False

    def curve(self, metric: str, site: str) -> tuple[Row, ...]:
        """The rows of one metric at one site by layer; empty where this scan has none."""
        found = (row for row in self.scan.rows if row.metric == metric and row.site == site)
        return tuple(sorted(found, key=lambda row: row.layer))


def series_of(scans: Sequence[Scan]) -> list[DrawnScan]:
    """Every scan, stack by stack, followed by its baseline, with names that do not repeat."""
    if not scans:
        raise expected("at least one scan", "none", "unsmooth.scan(model, data) first")
    taken: set[str] = set()
    series = []
    for index, scan in enumerate([part for whole in scans for part in whole.parts]):
        colour = PALETTE[index % len(PALETTE)]
        series.append(DrawnScan(unique(scan.name, taken), scan, colour))
        if scan.baseline is not None:
            name = scan.baseline.name
            name = f"{name} (random weights)" if name == scan.name else name
            series.append(DrawnScan(unique(name, taken), scan.baseline, colour, dashed=True))
    return series


def measured(series: Iterable[DrawnScan]) -> dict[str, list[str]]:
    """Metric to its sites, both in the order of the scans, for every curve that at least one scan has.

    The mean cosine, which most papers plot and the sentence of a scan speaks of, comes first.

    >>> measured([])
    {}
    """
    pairs: dict[str, list[str]] = {}
    for one in series:
        present = {(row.metric, row.site) for row in one.scan.rows}
        for metric in _ordered(one.scan.metrics, (metric for metric, _ in present)):
            for site in _ordered(one.scan.sites, (site for _, site in present)):
                known = pairs.setdefault(metric, [])
                if (metric, site) in present and site not in known:
                    known.append(site)
    ordered = sorted(pairs, key=lambda metric: metric != "mean_cosine")  # stable: the rest stays as it is
    return {metric: pairs[metric] for metric in ordered if pairs[metric]}


def printable(text: object) -> str:
    r"""Text that SVG and HTML can carry: no control characters, no broken surrogates.

    >>> printable("a\nb\x1b")
    'a b�'
    """
    words = " ".join(str(text).split())
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in words)


def number(value: float | None) -> float | None:
    """Six significant digits, or None where JSON has no number for it.

    >>> number(1 / 3), number(float("nan"))
    (0.333333, None)
    """
    return float(f"{value:.6g}") if value is not None and math.isfinite(value) else None


def chance_levels(series: Sequence[DrawnScan], metric: str) -> list[dict[str, float | str]]:
    """Each distinct chance level with its label, and what rounding alone gives where a curve comes down to that.

    Scans are named only where they differ.
    """
    levels: list[dict[str, float | str]] = []
    for what in ("chance", "rounding"):
        names: dict[float, list[str]] = {}
        for one in series:
            card = one.scan.metrics.get(metric)
            means = [row.mean for row in one.scan.rows if row.metric == metric]
            drawn = card is not None and (what == "chance" or any(card.is_rounding(mean) for mean in means))
            value = number(getattr(card, what)) if drawn else None
            if value is not None:
                names.setdefault(value, []).append(one.name)
        alone = len(names) == 1
        levels += [
            {"chance": value, "label": f"{what} {spoken(value)}" + ("" if alone else f" ({', '.join(who)})")}
            for value, who in names.items()
        ]
    return levels


def unique(name: str, taken: set[str]) -> str:
    """A printable name that none of `taken` bears; it joins them.

    >>> unique("a", {"a"}), unique("", set())
    ('a (2)', 'scan')
    """
    stem = candidate = printable(name) or "scan"
    count = 2
    while candidate in taken:
        candidate, count = f"{stem} ({count})", count + 1
    taken.add(candidate)
    return candidate


def _ordered(first: Iterable[str], present: Iterable[str]) -> list[str]:
    """Names in the order of `first`, then those of `present` that it leaves out."""
    return list(dict.fromkeys([*first, *sorted(present)]))
