"""Which remedy helps a model, at what cost: every one of them on the same recipe at the same budget.

>>> from unsmooth.arena import split_remedies
>>> split_remedies("deescalate(tau=0.5, place=values), sharpen")
('deescalate(tau=0.5, place=values)', 'sharpen')
"""

from __future__ import annotations

from unsmooth.arena.budget import Budget
from unsmooth.arena.folder import ArenaFolder
from unsmooth.arena.plan import Entrant, Plan, plan_arena, split_remedies
from unsmooth.arena.sharing import share_out
from unsmooth.arena.standing import Standing, Standings, standings
from unsmooth.arena.working import carry_out_arena

__all__ = [
    "ArenaFolder",
    "Budget",
    "Entrant",
    "Plan",
    "Standing",
    "Standings",
    "carry_out_arena",
    "plan_arena",
    "share_out",
    "split_remedies",
    "standings",
]
