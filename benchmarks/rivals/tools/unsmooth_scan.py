"""unsmooth itself, asked the same questions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from benchmarks.rivals.cases import HIGH, LOW, Case
from benchmarks.rivals.harness import Turns, plain

ENVIRONMENT = ""
PACKAGES = ("unsmooth", "transformers", "torch", "numpy")
SAME_JOB = "mean_cosine(with_self=True)"


def load(folder: Path) -> nn.Module:
    """The body of the model, as the others load it: a head that a scan does not run would count for the scan."""
    from transformers import AutoModel

    model: nn.Module = AutoModel.from_pretrained(folder).eval()
    return model


def _scan(metrics: Sequence[str] | None, whole: bool = False) -> Callable[[nn.Module, Turns], dict[str, Any]]:
    """A scan, `whole` or without what no other tool does: to tell what stands out, and to hash the weights."""

    def measure(model: nn.Module, turns: Turns) -> dict[str, Any]:
        import unsmooth

        asked: dict[str, Any] = {"metrics": metrics, "confounds": whole, "fingerprint": whole}
        found = unsmooth.scan(model, iter(turns), tokens="all", progress=False, **asked)
        return {_plain_name(name): [row.mean for row in found.curve(name)] for name in found.metrics}

    return measure


def _plain_name(metric: str) -> str:
    return "mean_cosine_with_self" if metric == SAME_JOB else metric


def nothing(model: nn.Module, turns: Turns) -> dict[str, Any]:
    """A plain pass in the place of a measurement: what is left of the weather."""
    for step in turns:
        plain(model, [step])
    return {}


def answers(case: Case) -> Mapping[str, float]:
    """Means over texts of the pure functions, padding told by a mask."""
    from unsmooth.functional import cosine_quantile, effective_rank, mean_cosine, stable_rank

    x, mask = case.padded()
    every_pair = x.shape[1] ** 2
    low, high = (cosine_quantile(x, mask, q=q, pairs=every_pair) for q in (LOW, HIGH))
    return {
        "mean_cosine": float(mean_cosine(x, mask).mean()),
        "mean_cosine_with_self": float(mean_cosine(x, mask, with_self=True).mean()),
        "cosine_spread": float((high - low).mean()),
        "effective_rank": float(effective_rank(x, mask).mean()),
        "stable_rank": float(stable_rank(x, mask).mean()),
    }


WAYS = {
    "unsmooth, same job": _scan([SAME_JOB]),
    "unsmooth, default scan": _scan(None, whole=True),
    "unsmooth, effective rank": _scan(["effective_rank"]),
    "plain": nothing,
}
