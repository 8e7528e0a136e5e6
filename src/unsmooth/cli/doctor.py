"""``unsmooth doctor``: what is installed, what is missing and how to get it, and whether the core works."""

from __future__ import annotations

from typing import Annotated

import typer

from unsmooth.cli.options import Debug


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of lines.")] = False,
    debug: Debug = False,
) -> int:
    """Say what is installed, what is missing and how to get it; exit code 0 where the core works, else 1."""
    from unsmooth.doctor.checks import main

    return main(["--json"] if as_json else [])
