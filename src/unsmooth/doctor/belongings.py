"""Models that come along, and data sets that were prepared: whether their files are what they should be."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from unsmooth.doctor.check import Check
from unsmooth.errors import UnsmoothError

DEMO, DATA = "demo models", "data in ./data"


def belongings(data: Path = Path("data")) -> list[Check]:
    """Every file checked by its digest where there is one; imports torch."""
    return [*_demo_models(), *_data(data)]


def _demo_models() -> Iterator[Check]:
    from unsmooth.models import demo
    from unsmooth.networks.saving import WEIGHTS_FILE
    from unsmooth.training.data.digests import file_digest

    again = "pip install --force-reinstall --no-deps ./demo"
    for short in demo.NAMES:
        name, weights = f"{demo.PREFIX}{short}", demo.folder(short) / WEIGHTS_FILE
        try:
            whole = file_digest(weights) == demo.manifest(name)["sha256"]
        except (OSError, UnsmoothError):
            yield Check(DEMO, name, "missing", "unsmooth-demo is not installed", again)
            continue
        size = f"{weights.stat().st_size / 1e6:.1f} MB"
        if whole:
            yield Check(DEMO, name, "ok", size)
        else:
            yield Check(DEMO, name, "broken", f"{WEIGHTS_FILE} ({size}) has another sha256", again)
    try:
        yield Check(DEMO, "images", "ok", f"{len(demo.images()[1])}")
    except UnsmoothError:
        yield Check(DEMO, "images", "missing", "cannot be read", again)


def _data(folder: Path) -> Iterator[Check]:
    from unsmooth.training.data.listing import listed

    for each in listed(folder):
        size = f"{each.bytes / 1e6:.1f} MB"
        if each.state == "whole":
            yield Check(DATA, each.name, "ok", size)
        elif each.state == "absent":
            yield Check(DATA, each.name, "missing", "", f"unsmooth data get {each.name}")
        elif each.state == "unchecked":
            yield Check(DATA, each.name, "note", f"{size}, not checked: {each.problem}")
        else:
            yield Check(DATA, each.name, "broken", each.problem, f"unsmooth data get {each.name}")
