"""A plate as one HTML file, which opens from disk, runs no script and never asks a network for anything."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unsmooth.report.evidence.page import picture_of
from unsmooth.report.extras import import_extra
from unsmooth.report.series import printable
from unsmooth.report.shell import environment, policy, resource

if TYPE_CHECKING:
    from unsmooth.report.plates.plate import Plate


def plate_html(plate: Plate) -> str:
    """The page as text."""
    markup = import_extra("markupsafe").Markup
    page = environment({"plate.html.j2": "plates/plate.html.j2", "picture.html.j2": "evidence/picture.html.j2"})
    page.filters.update(printable=printable)
    return str(
        page.get_template("plate.html.j2").render(
            plate=plate,
            pictures=[picture_of(plate.figure, panel) for panel in plate.figure.panels],
            policy=policy(),
            style=markup("\n".join(map(resource, ("page.css", "evidence/evidence.css")))),
        )
    )
