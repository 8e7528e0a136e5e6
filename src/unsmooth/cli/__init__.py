"""The `unsmooth` command: one file per verb, nothing heavy imported before a verb runs."""

from unsmooth.cli.app import main

__all__ = ["main"]
