"""Options that no model of an arena can have: a slip of whoever asked, not what a model refuses."""

from __future__ import annotations

from torch import nn

from unsmooth.arena.plan import PLAIN, Plan
from unsmooth.errors import UnsmoothError
from unsmooth.models.randomise import private_randomness
from unsmooth.networks.saving import build
from unsmooth.remedies.base import option_defaults
from unsmooth.remedies.checking import checked_options
from unsmooth.remedies.listing import find_remedy
from unsmooth.remedies.specification import Wish, parse_remedies
from unsmooth.remedies.stack import find_changeable


def check_options(plan: Plan) -> None:
    """Refuse options of a remedy that are wrong on every model, before anything is trained beside it."""
    wishes = {remedy: parse_remedies(remedy) for remedy in plan.remedies if remedy != PLAIN}
    slips: dict[str, list[UnsmoothError | None]] = {remedy: [] for remedy in wishes}
    for config in plan.models.values():
        with private_randomness(config.seed):
            model = build(config.network, config.seed)
            for remedy, wanted in wishes.items():
                slips[remedy].append(next((slip for wish in wanted if (slip := _slip(wish, model)) is not None), None))
    for remedy, found in slips.items():
        if found[0] is not None and None not in found:
            raise UnsmoothError(f"In {remedy}: {found[0]}")


def _slip(wish: Wish, model: nn.Module) -> UnsmoothError | None:
    """What is wrong with the options themselves: the remedy's own defaults can be built here, and these cannot."""
    kind = find_remedy(wish.name)
    try:
        options = checked_options(kind, wish.options)
        stacks, _ = find_changeable(model, None, wish.stack)
        sites = [site for one in stacks for site in one.choose(wish.layers)]
    except UnsmoothError as error:
        return error
    # Building an edit checks its options and touches nothing. Of a block that it does not fit nobody can say more.
    try:
        kind(sites[0], **option_defaults(kind))
    except Exception:
        return None
    try:
        kind(sites[0], **options)
    except UnsmoothError as error:
        return error
    return None
