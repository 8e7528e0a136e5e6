"""A picture for every metric: how it moves as independent tokens become one, or attention gathers on one token."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from unsmooth.functional import Metric
from unsmooth.report.charts import FAINT, INK, chart_config, chart_svg
from unsmooth.report.shell import import_extra

SEQUENCES, TOKENS, FEATURES, HEADS, STEPS = 8, 32, 64, 4, 41
SIDE = 6


@dataclass(frozen=True)
class Path:
    """A way from one extreme to the other.

    Args:
        inputs: What a metric reads at t between 0 and 1.
        axis: What t means.
        words: The same as a sentence.
    """

    inputs: Callable[[float], tuple[Tensor, ...]]
    axis: str
    words: str


def _tokens(t: float, tokens: int = TOKENS, *, one: bool = False) -> Tensor:
    """Noise, and a vector that the tokens of a sequence have in common, or with `one` those of all sequences."""
    random = torch.Generator().manual_seed(0)
    noise = torch.randn(SEQUENCES, tokens, FEATURES, generator=random, dtype=torch.float64)
    common = torch.randn(1 if one else SEQUENCES, 1, FEATURES, generator=random, dtype=torch.float64)
    return (1 - t) * noise + t * common


def _words(t: float) -> tuple[Tensor, Tensor]:
    """Noise, and a vector for each word; every sequence has all words, in an order of its own."""
    random = torch.Generator().manual_seed(0)
    noise = torch.randn(SEQUENCES, TOKENS, FEATURES, generator=random, dtype=torch.float64)
    meaning = torch.randn(TOKENS, FEATURES, generator=random, dtype=torch.float64)
    words = torch.stack([torch.arange(TOKENS).roll(shift) for shift in range(SEQUENCES)])
    return (1 - t) * noise + t * meaning[words], words


def _attention(t: float) -> Tensor:
    random = torch.Generator().manual_seed(0)
    scores = torch.randn(SEQUENCES, HEADS, TOKENS, TOKENS, generator=random, dtype=torch.float64)
    first = torch.zeros(TOKENS, dtype=torch.float64)
    first[0] = 1.0
    return (1 - t) * (2 * scores).softmax(dim=-1) + t * first


PATHS: Mapping[str, Path] = {
    "tokens": Path(
        lambda t: (_tokens(t),),
        "share t of what all tokens have in common",
        f"{TOKENS} tokens x_i = (1 − t)·g_i + t·v of {FEATURES} features, g_i and v standard normal: at t = 0 they are "
        "independent, at t = 1 one vector.",
    ),
    "grid": Path(
        lambda t: (_tokens(t, SIDE**2),),
        "share t of what all patches have in common",
        f"{SIDE}×{SIDE} patches (1 − t)·g_i + t·v of {FEATURES} features, g_i and v standard normal: at t = 0 they are "
        "independent, at t = 1 one vector.",
    ),
    "words": Path(
        _words,
        "share t of what a word brings along into every sequence",
        f"{TOKENS} words in each of {SEQUENCES} sequences, (1 − t)·g + t·w of {FEATURES} features, g drawn anew for "
        "each sequence and w for each word: at t = 0 the context is everything, at t = 1 nothing.",
    ),
    "sequences": Path(
        lambda t: (_tokens(t, one=True),),
        "share t of what all tokens of all sequences have in common",
        f"{SEQUENCES} sequences of {TOKENS} tokens (1 − t)·g_i + t·v of {FEATURES} features, v the same in all: at "
        "t = 0 they are independent, at t = 1 one vector.",
    ),
    "pair": Path(
        lambda t: (_tokens(0.0), _tokens(t)),
        "share t of what all tokens have in common after the step",
        f"From {TOKENS} independent tokens g_i of {FEATURES} features to (1 − t)·g_i + t·v: at t = 0 the step changes "
        "nothing, at t = 1 all tokens become one vector.",
    ),
    "attention": Path(
        lambda t: (_attention(t),),
        "share t of attention that goes to the first token",
        f"Rows of random attention over {TOKENS} keys, (1 − t)·softmax(2g) + t·(1, 0, …, 0): at t = 1 every query "
        "looks at the first token alone.",
    ),
}


def path_of(metric: Metric) -> Path | None:
    """The way that suits what a metric reads; None where none of these does."""
    return PATHS.get(metric.reads)


def moves(metric: Metric) -> list[dict[str, float]]:
    """Mean, least and greatest value over sequences, by t; values that are no finite number are left out."""
    path = path_of(metric)
    rows = []
    for step in range(STEPS if path else 0):
        assert path is not None
        t = step / (STEPS - 1)
        values = metric.function(*path.inputs(t))
        row = {"t": t, "mean": values.mean().item(), "low": values.min().item(), "high": values.max().item()}
        if all(map(math.isfinite, row.values())):
            rows.append(row)
    return rows


def picture(metric: Metric) -> str | None:
    """The picture as an image in Markdown; None where the metric reads something else."""
    path, rows = path_of(metric), moves(metric)
    if path is None or not rows:
        return None
    alt = import_extra("altair")
    base = alt.Chart(alt.Data(values=rows)).encode(x=alt.X("t:Q", title=path.axis))
    scale = alt.Scale(zero=False)
    layers = [
        base.mark_area(opacity=0.2).encode(y=alt.Y("low:Q", title=metric.name, scale=scale), y2="high:Q"),
        base.mark_line(strokeWidth=2).encode(y=alt.Y("mean:Q", title=metric.name, scale=scale)),
    ]
    if metric.chance is not None and metric.reads in ("tokens", "sequences"):
        level = alt.Data(values=[{"chance": metric.chance(float(TOKENS), FEATURES), "label": "chance"}])
        rule = alt.Chart(level).encode(y=alt.Y("chance:Q", title=metric.name))
        layers.append(rule.mark_rule(strokeDash=[2, 3]))
        layers.append(rule.mark_text(align="right", baseline="bottom", dy=-3).encode(x=alt.value(468), text="label:N"))
    chart = alt.layer(*layers).properties(width=470, height=240)
    return inline_svg(chart.configure(**chart_config(INK, FAINT, "white")), f"{metric.name} from t = 0 to t = 1")


def inline_svg(chart: Any, alternative: str = "chart") -> str:
    """A chart as an image that needs no file."""
    data = base64.b64encode(chart_svg(chart).encode()).decode()
    return f'<img alt="{alternative}" src="data:image/svg+xml;base64,{data}">'
