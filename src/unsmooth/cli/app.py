"""The command itself: verbs, exit codes, and errors told in one line."""

from __future__ import annotations

import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import typer

from unsmooth.cli.apply import apply
from unsmooth.cli.arena import arena
from unsmooth.cli.compare import compare
from unsmooth.cli.console import say
from unsmooth.cli.data import data
from unsmooth.cli.doctor import doctor
from unsmooth.cli.evidence import evidence
from unsmooth.cli.explain import explain
from unsmooth.cli.ls import ls
from unsmooth.cli.presets import presets
from unsmooth.cli.ranks import Ending
from unsmooth.cli.redraw import redraw
from unsmooth.cli.report import report
from unsmooth.cli.scan import scan
from unsmooth.cli.train import train
from unsmooth.cli.watch import watch
from unsmooth.plugins import PluginWarning

EXIT_FOUND = 1
"""A --fail-if condition is met, or activations were NaN or Inf."""
EXIT_BAD_INPUT = 2
EXIT_NOT_FINISHED = 3
"""The time given to a training was too short; the same command goes on."""
EXIT_INTERRUPTED = 130

app = typer.Typer(
    help="See, explain and steer how alike the tokens of a Transformer become with depth.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(scan)
app.command()(explain)
app.command()(apply)
app.command()(compare)
app.command()(presets)
app.command()(redraw)
app.command()(train)
app.command()(arena)
app.command()(report)
app.command()(watch)
app.command()(ls)
app.command()(doctor)
app.add_typer(data, name="data")
app.add_typer(evidence, name="evidence")


@app.callback(invoke_without_command=True)
def _options(
    version: bool = typer.Option(False, "--version", help="Print the version and stop.", is_eager=True),
) -> None:
    if version:
        from unsmooth import __version__

        typer.echo(__version__)
        raise typer.Exit


def main(arguments: list[str] | None = None) -> None:
    """Run the command and exit with its code."""
    ending = Ending()
    ending.exit(run(sys.argv[1:] if arguments is None else arguments))


def run(words: list[str]) -> int:
    """Run the command on `words` and return its exit code; no error leaves with a traceback unless --debug is given."""
    debug = "--debug" in words
    try:
        with _plugins_told_in_one_line():
            code = _command()(args=words, standalone_mode=False, prog_name="unsmooth")
    except typer.Exit as stop:
        return stop.exit_code
    except (KeyboardInterrupt, typer.Abort):
        return _tell("Interrupted.", EXIT_INTERRUPTED, debug)
    except BrokenPipeError:
        return 0
    except Exception as error:
        message = _one_line(error)
        return _tell(message, EXIT_BAD_INPUT, debug) if message else EXIT_BAD_INPUT
    return code if isinstance(code, int) else 0


@cache
def _command() -> Any:
    return typer.main.get_command(app)


@contextmanager
def _plugins_told_in_one_line() -> Iterator[None]:
    """A package of somebody else that does not load is one line on the error stream, without a place in our code."""
    with warnings.catch_warnings():
        show = warnings.showwarning

        def tell(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
            if issubclass(category, PluginWarning):
                say(f"unsmooth: {message}", err=True)
            else:
                show(message, category, *where, **more)

        warnings.showwarning = tell
        yield


def _one_line(error: Exception) -> str:
    from unsmooth.errors import UnsmoothError

    # What is wrong with the words themselves; its class is click's or typer's own, depending on the version.
    said = getattr(error, "format_message", None)
    if callable(said):
        text = str(said())
        if not text:  # no word at all: the help is shown already
            return ""
        return f"{text if text.endswith(('.', '?')) else text + '.'} Try --help."
    text = " ".join(str(error).split())
    if isinstance(error, UnsmoothError):
        return text
    return f"Expected the command to run but got {type(error).__name__}: {text}. Try --debug for where."


def _tell(message: str, code: int, debug: bool) -> int:
    if debug:
        traceback.print_exc()
    say(f"unsmooth: {message}", err=True)
    return code
