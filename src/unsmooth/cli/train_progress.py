"""What a run shows while it goes on: a bar with the time left on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

from unsmooth.cli.console import Console

if TYPE_CHECKING:
    from rich.progress import TaskID

    from unsmooth.training import Progress

_SECONDS_BETWEEN_LINES = 10.0


@contextmanager
def shown_progress(*, quiet: bool, bars: bool = True) -> Iterator[Callable[[Progress], None]]:
    """Yields what to call with every `Progress`; without bars where several processes write to one terminal."""
    from unsmooth.training.place import is_first_process

    if quiet or not is_first_process():
        yield lambda _: None
        return

    console = Console(stderr=True)
    with _bars(console) if bars and console.is_terminal else _lines(console) as tell:
        yield tell


@contextmanager
def _bars(console: Console) -> Iterator[Callable[[Progress], None]]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[said]}"),
    )
    with Bars(*columns, console=console) as bars:
        rows: dict[str, TaskID] = {}
        note = _noting(console)

        def tell(progress: Progress) -> None:
            note(progress.note)
            if progress.name not in rows:
                rows[progress.name] = bars.add_task(progress.name, total=progress.steps, said="")
            bars.update(rows[progress.name], completed=progress.step, said=in_words(progress))

        yield tell


@contextmanager
def _lines(console: Console) -> Iterator[Callable[[Progress], None]]:
    last: dict[str, tuple[float, str]] = {}
    note = _noting(console)

    def tell(progress: Progress) -> None:
        note(progress.note)
        (before, said), now, words = last.get(progress.name, (0.0, "")), time.monotonic(), _so_far(progress)
        if words == said or (now - before < _SECONDS_BETWEEN_LINES and progress.step < progress.steps):
            return
        last[progress.name] = now, words
        console.print(f"{progress.name}: {words}", highlight=False, soft_wrap=True)

    yield tell


def _noting(console: Console) -> Callable[[str], None]:
    """Prints notes, each of them once: many runs may have the same to say."""
    said = {""}

    def note(text: str) -> None:
        if text not in said:
            said.add(text)
            console.print(text, highlight=False, soft_wrap=True)

    return note


def _so_far(progress: Progress) -> str:
    parts = [f"step {progress.step:,} of {progress.steps:,}"]
    if progress.step:
        parts.append(f"{progress.seconds * (progress.steps / progress.step - 1):,.0f} s left")
    return ", ".join([*parts, *filter(None, [in_words(progress)])])


def in_words(progress: Progress) -> str:
    """The newest numbers, in a few words."""
    from unsmooth.numbers import Precision

    names = {"train/loss": "loss", "evaluation/loss": "evaluation loss", "evaluation/accuracy": "accuracy"}
    return ", ".join(
        f"{word} {Precision()(progress.said[name])}" for name, word in names.items() if name in progress.said
    )
