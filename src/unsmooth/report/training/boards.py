"""Every board that some runs have data for."""

from __future__ import annotations

from collections.abc import Sequence

from unsmooth.report.training.board import Board, Limits, Subject
from unsmooth.report.training.curves import loss_board, metrics_board, moments_board, optimiser_board
from unsmooth.report.training.maps import quantiles_board, similarity_board, spectrum_board
from unsmooth.report.training.variants import Variant

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
