"""The pictures of a training for notebooks and papers."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from unsmooth.errors import unknown_name
from unsmooth.report.charts import FAINT, INK
from unsmooth.report.series import printable
from unsmooth.report.shell import import_extra
from unsmooth.report.training.board import Board, Limits, Subject
from unsmooth.report.training.curves import loss_board, metrics_board, moments_board, optimiser_board
from unsmooth.report.training.draw import RAMPS
from unsmooth.report.training.maps import quantiles_board, similarity_board, spectrum_board
from unsmooth.report.training.variants import Variant, variants_of
from unsmooth.report.why.figures import why_config
from unsmooth.report.why.panels import Picture
from unsmooth.training.trained_run import TrainedRun

if TYPE_CHECKING:
    import altair


_BOARDS = (
    loss_board,
    metrics_board,
    similarity_board,
    moments_board,
    spectrum_board,
    quantiles_board,
    optimiser_board,
)  # in the order of the page


def boards_of(variants: Sequence[Variant], limits: Limits | None = None) -> dict[str, Board]:
    """Boards by name; one without data is not there."""
    subject = Subject(tuple(variants), limits or Limits())
    made = (board(subject) for board in _BOARDS)
    return {board.name: board for board in made if board.panels}


_WIDTH, _BESIDE = 560, 300


def figure(runs: TrainedRun | Sequence[TrainedRun], name: str, choice: str | None = None) -> altair.TopLevelMixin:
    """One picture of a training, as an Altair chart: show it in a notebook, or ``.save("loss.svg")``.

    Args:
        runs: One run, or several to draw over or beside one another.
        name: "loss", "metrics", "optimiser", "similarity", "moments", "spectrum" or "quantiles", as far as the runs
            hold data for it; or what is drawn there, such as "accuracy", "learning rate" or "asymmetry of H".
        choice: What to choose where a picture offers a choice: a metric, a quantity, "layer 3"; default the first.
    """
    boards = boards_of(variants_of([runs] if isinstance(runs, TrainedRun) else runs))
    board, subjects, place = _chosen(boards, name, choice)
    panels = [(board.subjects[one], board.panels.get((one, place))) for one in subjects]
    charts = [_chart(subject, panel, len(panels) > 1) for subject, panel in panels if panel is not None]
    alt = import_extra("altair")
    chart = charts[0] if len(charts) == 1 else alt.concat(*charts, columns=3)
    config = why_config(INK, FAINT, "white")
    config["legend"] |= {"titleFontWeight": "normal", "titleFontSize": 12}
    made: altair.TopLevelMixin = chart.configure(**config, range=alt.RangeConfig(**RAMPS["light"]))
    return made


def _chosen(boards: dict[str, Board], name: str, choice: str | None) -> tuple[Board, Sequence[int], int]:
    """The board, which of its subjects, and the place of the choice."""
    if name in boards:
        board = boards[name]
        if choice is not None and choice not in board.choices:
            raise unknown_name(board.choose.lower() or "choice", choice, board.choices)
        return board, range(len(board.subjects)), board.choices.index(choice) if choice else 0
    for board in boards.values():
        if name in board.choices:
            return board, range(len(board.subjects)), board.choices.index(name)
        if board.name == "optimiser" and name in board.subjects:
            return board, (board.subjects.index(name),), 0
    offered = [*boards, *(one for board in boards.values() for one in (*board.choices, *board.subjects) if one)]
    raise unknown_name("picture of these runs", name, dict.fromkeys(offered))


def _chart(subject: str, panel: Picture, beside: bool) -> Any:
    alt = import_extra("altair")
    chart = panel.drawing(*panel.options, {name: alt.Data(values=rows) for name, rows in panel.tables.items()})
    width = _BESIDE if beside else _WIDTH
    subtitle = [] if beside else textwrap.wrap(printable(f"{panel.reading} {panel.caption}"), 96)
    title = alt.TitleParams(printable(subject if beside else panel.title), subtitle=subtitle)
    description = printable(f"{panel.title}. {panel.reading} {panel.caption}")
    return chart.properties(title=title, width=width, height=panel.height, description=description)
