"""What a monitor writes at the head of its files: enough to know what its numbers mean."""

from __future__ import annotations

from typing import Any

from unsmooth.models import SITES
from unsmooth.monitor.probe import Probe
from unsmooth.monitor.settings import Settings
from unsmooth.scanning.manifest import describe_definitions, describe_versions
from unsmooth.scanning.ranks import world


def describe(probe: Probe, settings: Settings, every: int, given: Any) -> dict[str, Any]:
    """Plain data."""
    sites = {site: SITES[site] for site in probe.sites}
    return {
        "every": every,
        "looks_at": "training passes" if given is None else "the first batch" if isinstance(given, str) else "a batch",
        "model": {
            "class": type(probe.model).__name__,
            "stacks": [
                {"name": stack.stack, "host": stack.host.name, "blocks": len(stack.blocks)} for stack in probe.stacks
            ],
            "parameters": sum(one.numel() for one in probe.model.parameters()),
        },
        "rules": [rule.text for rule in settings.rules],
        "preset": None if settings.preset is None else settings.preset.describe(),
        "definitions": describe_definitions(settings.metrics, sites, probe.tokens),
        "versions": describe_versions(),
        "processes": world()[1],
    }
