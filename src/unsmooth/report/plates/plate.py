"""What a plate holds, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from unsmooth.evidence.figure import Figure

if TYPE_CHECKING:
    from unsmooth.presets import Preset


@dataclass(frozen=True)
class Table:
    """Lines of text under heads; the first column names the line."""

    title: str
    heads: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Card:
    """A definition: what it is called, where it comes from, and what is known about it."""

    name: str
    summary: str
    facts: Mapping[str, str]


@dataclass(frozen=True)
class Plate:
    """A figure and what a reader needs beside it.

    Args:
        name: What its files are called.
        title: What it shows.
        sentence: What is to be seen in it.
        figure: The picture.
        cards: The definitions behind the numbers.
        tables: Numbers in words.
        notes: What else must be known.
    """

    name: str
    title: str
    sentence: str
    figure: Figure
    cards: tuple[Card, ...] = ()
    tables: tuple[Table, ...] = ()
    notes: tuple[str, ...] = ()


def card_of(preset: Preset) -> Card:
    """A preset as a definition."""
    told = preset.describe()
    facts = {
        "Source": preset.source,
        "Rests on": told["basis"],
        "Metric": preset.curve,
        "Tokens": "without class and other special tokens" if preset.tokens == "content" else "all but padding",
        "Sites": ", ".join(preset.sites),
        "Average": preset.aggregation,
        "Not known": "; ".join(preset.unknown),
        "Differs from the source": "; ".join(preset.differs),
    }
    return Card(preset.name, preset.summary, {label: text for label, text in facts.items() if text})
