"""The terminal, which what comes from files must not steer: rich's console, and plain lines."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

import rich.console
import typer
from rich.segment import Segment

if TYPE_CHECKING:
    from rich.console import ConsoleOptions, RenderableType

# Control characters but for new line and tab, marks that turn the direction of text, and halves of surrogate pairs.
_STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def harmless(text: str) -> str:
    r"""Text that a terminal shows and does not obey.

    >>> harmless("plain\x1b[2J\u202etxt\n")
    'plain�[2J�txt\n'
    """
    return _STEERING.sub("\ufffd", text)


def say(text: str, err: bool = False) -> None:
    """Print a line on the output or on the error stream."""
    typer.echo(harmless(text), err=err)


class Console(rich.console.Console):
    """Rich's, in which only styles make control characters."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """See `rich.console.Console.render`."""
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else harmless(text), style, control)
