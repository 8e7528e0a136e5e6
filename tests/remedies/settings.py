"""The settings each remedy is tried with: what a new remedy adds to join the harness.

Options away from the neutral setting, one variant for every way the remedy can work. A host that a variant refuses is
named here, so that a refusal nobody meant is a failure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Setting:
    """One way to apply a remedy.

    Args:
        options: What is handed to `apply`.
        refused_by: The hosts that cannot have it; "every" for all of them.
        neutral: Whether the remedy's neutral setting, on top of these options, changes nothing.
    """

    options: Mapping[str, Any] = field(default_factory=dict)
    refused_by: tuple[str, ...] = ()
    neutral: bool = True


SETTINGS: dict[str, dict[str, Setting]] = {
    "deescalate": {
        "attention": Setting({"tau": 0.7}),
        "residual, learned by layer": Setting({"tau": 0.7, "place": "residual", "learn": "layer"}),
        "norm, learned by channel": Setting({"tau": 0.7, "place": "norm", "learn": "channel"}),
        "values, learned by channel": Setting({"tau": 0.7, "place": "values", "learn": "channel"}),
        "first token removed, with a prior": Setting({"tau": 0.7, "first": "remove", "prior": 1.5}),
    },
    "residual_scaling": {"1/√L": Setting()},
}
