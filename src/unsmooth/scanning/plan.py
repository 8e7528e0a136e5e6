"""What a scan was asked for, checked before anything runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from unsmooth.errors import UnsmoothError, expected, unknown_name
from unsmooth.functional import METRICS, BoundMetric, parse_metric
from unsmooth.models import SITES, Anatomy
from unsmooth.scanning.calling import TOKEN_CHOICES, TokenChoice

HEADLINE = "mean_cosine"
"""The metric that a scan's sentence is about unless others are asked for: the one most papers plot."""

EVERY_SITE = "all"


@dataclass(frozen=True)
class Plan:
    """The settings of one scan."""

    metrics: Sequence[BoundMetric]
    sites: Sequence[str]
    tokens: TokenChoice
    max_batches: int | None
    device: torch.device | None
    progress: bool
    blocks: str | None
    seed: int
    name: str | None
    confounds: bool = True
    fingerprint: bool = True


def check_metrics(names: Sequence[str] | None, maps: bool = False) -> list[BoundMetric]:
    """Metrics by name, the O(nd) set for None; those of attention maps only where `maps` are to be had."""
    if isinstance(names, str):
        names = [names]
    if names is None:
        defaults = [BoundMetric(metric) for metric in METRICS.values() if metric.default]
        return sorted(defaults, key=lambda metric: metric.name != HEADLINE)
    bound = [parse_metric(name) for name in listed("metrics", names, "mean_cosine")]
    if not bound:
        raise expected("at least one metric", "none", "metrics=None for the default set")
    for metric in bound:
        if metric.metric.reads == "attention" and not maps:
            raise UnsmoothError(
                f"Expected a metric of token vectors but got {metric.name!r}, which reads attention maps. "
                f"Try unsmooth.functional.{metric.metric.name}(maps, mask) on the maps themselves."
            )
    return list({metric.name: metric for metric in bound}.values())


def listed(what: str, given: Iterable[str], such_as: str) -> list[str]:
    """Names in a list; whatever else was given is refused."""
    names = list(given) if isinstance(given, Iterable) else [given]
    if not isinstance(given, Iterable) or not all(isinstance(name, str) for name in names):
        raise expected(f"{what} by name", repr(given), f"{what}=[{such_as!r}]")
    return names


def check_sites(sites: Sequence[str]) -> tuple[str, ...]:
    """Sites that there are, as a tuple without repeats."""
    names = site_names(sites)
    for name in names:
        if name not in (*SITES, EVERY_SITE):
            raise unknown_name("site", name, (*SITES, EVERY_SITE))
    return names


def site_names(sites: Sequence[str]) -> tuple[str, ...]:
    """Names as a tuple without repeats."""
    names = (sites,) if isinstance(sites, str) else tuple(dict.fromkeys(listed("sites", sites, "residual")))
    if not names:
        raise expected("at least one site", "none", 'sites=("residual",)')
    return names


def sites_of(stacks: Sequence[Anatomy], sites: Sequence[str]) -> tuple[str, ...]:
    """The sites that are meant, "all" being every one of the stacks; one that no stack has is refused.

    Nothing is looked for inside the blocks where only the residual stream is asked for.
    """
    if EVERY_SITE in sites:
        every = {site for stack in stacks for site in (SITES if stack.is_open else stack.sites)}
        return tuple(site for site in SITES if site in every)
    for site in sites:
        if not any(stack.having([site]) or stack.is_open for stack in stacks):
            stacks[0].check_sites((site,))
    return tuple(sites)


def check_tokens(tokens: str) -> TokenChoice:
    """One of the two choices of tokens."""
    if tokens not in TOKEN_CHOICES:
        raise unknown_name("choice of tokens", str(tokens), TOKEN_CHOICES)
    return "all" if tokens == "all" else "content"


def check_at_least_one(name: str, value: int | None) -> int | None:
    """A positive whole number, or None."""
    if value is not None and (type(value) is not int or value < 1):
        raise expected(f"{name} of at least 1", repr(value)[:80], f"{name}=16")
    return value
