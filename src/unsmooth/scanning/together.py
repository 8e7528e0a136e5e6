"""One result out of several: the stacks of a model, and a model with its random twin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from unsmooth.scanning.result import MetricCard, Scan
from unsmooth.scanning.sentence import one_sentence


def together(name: str, parts: Sequence[Scan], manifest: Mapping[str, Any]) -> Scan:
    """The scan of a model from those of its stacks; of one, that one."""
    if len(parts) == 1:
        return parts[0]
    return Scan(
        name=name,
        rows=tuple(row for part in parts for row in part.rows),
        metrics={metric: _shared_card([part.metrics[metric] for part in parts]) for metric in parts[0].metrics},
        sites={site: meaning for part in parts for site, meaning in part.sites.items()},
        manifest=manifest,
        profiles=tuple(profile for part in parts for profile in part.profiles),
        notes=notes_together(parts),
        sentence=sentences_together(parts),
        healthy=all(part.healthy for part in parts),
        stacks=tuple(parts),
    )


def _shared_card(cards: Sequence[MetricCard]) -> MetricCard:
    if len({card.chance for card in cards}) == 1:
        return cards[0]
    return replace(cards[0], chance=None, chance_note=f"{cards[0].chance_note}; differs between stacks")


class _Part(Protocol):
    """What is told of one stack of several."""

    @property
    def stack(self) -> str: ...
    @property
    def notes(self) -> tuple[str, ...]: ...
    @property
    def sentence(self) -> str: ...


def notes_together(parts: Sequence[_Part]) -> tuple[str, ...]:
    """Notes that all share, then those of each under its name."""
    shared = [note for note in parts[0].notes if all(note in part.notes for part in parts)]
    return *shared, *(f"{part.stack}: {note}" for part in parts for note in part.notes if note not in shared)


def sentences_together(parts: Sequence[_Part]) -> str:
    """What each says, under its name."""
    return " ".join(f"{part.stack.capitalize()}: {part.sentence}" for part in parts)


def compared_with(found: Scan, random: Scan) -> Scan:
    """The same beside random weights, stack by stack."""
    others = {part.stack: part for part in random.stacks}
    parts = tuple(compared_with(part, others[part.stack]) for part in found.stacks if part.stack in others)
    notes = tuple(dict.fromkeys((*found.notes, *random.notes)))
    compared = replace(found, baseline=random, notes=notes, stacks=parts)
    return replace(compared, sentence=sentences_together(parts) if parts else one_sentence(compared))


def marked_unfinished(scan: Scan, note: str) -> Scan:
    """The same, known to be a part of what was asked for."""
    parts = tuple(marked_unfinished(part, note) for part in scan.stacks)
    return replace(scan, complete=False, notes=(note, *scan.notes), stacks=parts)
