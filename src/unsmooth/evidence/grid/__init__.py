"""Registered grids: many small trainings under rules that were written down before the first of them ran.

A registration is a JSON file: data, networks, training, factors, rules. A piece of it is one family at one depth and
width, all members of which train side by side; its results are one file, which is resumed where it ends and refused
where another registration made it.
"""

from unsmooth.evidence.grid.piece import run_piece
from unsmooth.evidence.grid.registration import Piece, Registration, registered

__all__ = ["Piece", "Registration", "registered", "run_piece"]
