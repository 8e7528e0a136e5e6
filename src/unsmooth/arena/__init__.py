"""Which remedy helps a model, at what cost: every one of them on the same recipe at the same budget.

>>> from unsmooth.arena import plan_arena
>>> from unsmooth.training import recipe
>>> [one.place for one in plan_arena(recipe("vit_cifar100"), ["deescalate(tau=0.5)"]).entrants]
['vit_cifar100/plain', 'vit_cifar100/deescalate-tau-0.5']
"""

from __future__ import annotations

from unsmooth.arena.plan import Budget, Entrant, Plan, Settled, plan_arena
from unsmooth.arena.results import ArenaFolder
from unsmooth.arena.run import carry_out_arena
from unsmooth.arena.standing import Standing, Standings, standings

__all__ = [
    "ArenaFolder",
    "Budget",
    "Entrant",
    "Plan",
    "Settled",
    "Standing",
    "Standings",
    "carry_out_arena",
    "plan_arena",
    "standings",
]
