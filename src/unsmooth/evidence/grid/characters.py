"""The text of a registration, as characters: windows of it at random places, the same ones for the same seed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from unsmooth.errors import expected
from unsmooth.evidence.grid.registration import Data, Training
from unsmooth.files import read_text
from unsmooth.training.ensemble import Batches

# So many windows of the test part are read: evenly spread.
_TESTS = 400


@dataclass(frozen=True)
class Characters:
    """Places of characters in the sorted alphabet, int64: those trained on and, after them, those tested on."""

    train: Tensor
    test: Tensor
    classes: int
    length: int
    side: int = 0

    def probe(self, count: int, device: torch.device | str) -> tuple[Tensor, Tensor]:
        """Windows of the test part that are looked at, and the characters that follow."""
        return self._windows(torch.linspace(0, len(self.test) - self.length - 1, count).long(), self.test, device)

    def batches(self, seeds: Sequence[int], steps: int, training: Training, device: torch.device | str) -> Batches:
        """Windows at random places, for each member those of its seed."""
        last = len(self.train) - self.length
        drawn = {
            seed: torch.randint(last, (steps, training.batch), generator=torch.Generator().manual_seed(seed))
            for seed in seeds
        }
        at_SMB = torch.stack([drawn[seed] for seed in seeds], dim=1).to(device)
        text, along = self.train.to(device), torch.arange(self.length + 1, device=device)

        def chosen(at: Tensor) -> tuple[Tensor, Tensor]:
            windows = text[at_SMB.index_select(0, at)[0][..., None] + along]
            return windows[..., :-1], windows[..., 1:]

        return chosen

    def tests(self, at_a_time: int, device: torch.device | str) -> Iterator[tuple[Tensor, Tensor]]:
        """Windows spread over the test part, some at a time."""
        for some in torch.split(torch.linspace(0, len(self.test) - self.length - 1, _TESTS).long(), at_a_time):
            yield self._windows(some, self.test, device)

    def _windows(self, starts: Tensor, text: Tensor, device: torch.device | str) -> tuple[Tensor, Tensor]:
        windows = text[starts[:, None] + torch.arange(self.length + 1)].to(device)
        return windows[:, :-1], windows[:, 1:]


@cache
def characters(source: Path, data: Data) -> Characters:
    """The text that a registration asks for.

    Args:
        source: A folder with a file of the registered name and ".txt", or that file.
        data: Which text, and how much of it.
    """
    path = source if source.suffix == ".txt" else source / f"{data.name}.txt"
    if not path.is_file():
        raise expected(f"the text {data.name} at {path}", "none", "--data and the folder that it is in")
    text = read_text(path)
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    if digest != data.digest:
        raise expected(f"the registered text (digest {data.digest})", f"another one ({digest}) in {path}", data.name)
    alphabet = {letter: place for place, letter in enumerate(sorted(set(text)))}
    places = torch.tensor([alphabet[letter] for letter in text])
    if len(alphabet) != data.classes or len(places) < data.train + data.test:
        got = f"{len(places):,} of {len(alphabet)} kinds"
        raise expected(f"{data.train + data.test:,} characters of {data.classes} kinds in {path}", got, data.name)
    assert data.length is not None, "it is a text"
    train, test = places[: data.train], places[data.train : data.train + data.test]
    return Characters(train, test, len(alphabet), data.length)
