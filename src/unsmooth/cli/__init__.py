"""The `unsmooth` command: one file per verb, nothing heavy imported before a verb runs."""

from __future__ import annotations

import sys


def main(arguments: list[str] | None = None) -> None:
    """Run the command and exit with its code."""
    words = sys.argv[1:] if arguments is None else arguments
    try:
        from unsmooth.cli import app
    except ImportError as error:
        # Without the command's own packages only the doctor can be asked, who needs none.
        if words[:1] == ["doctor"]:
            from unsmooth.doctor.checks import main as ask

            sys.exit(ask(words[1:]))
        sys.stderr.write(f"unsmooth: Expected the command's packages but got {error}. Try `unsmooth doctor`.\n")
        sys.exit(2)
    app.main(words)


__all__ = ["main"]
