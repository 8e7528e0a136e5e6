"""What an arena found, in words."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from unsmooth.arena.plan import PLAIN, Entrant
from unsmooth.arena.standing import Standing, Standings
from unsmooth.evidence.interval import LEVEL, Interval
from unsmooth.numbers import Precision, spoken
from unsmooth.report.evidence.words import in_words

_MEBIBYTE = 2**20
_SHARES = ("accuracy",)
"""Scores that are told in percent, and their differences in percentage points."""


def scale_of(found: Standings) -> float:
    """What a score is multiplied by before it is told."""
    return 100.0 if found.plan.score in _SHARES else 1.0


def scaled(interval: Interval, scale: float) -> Interval:
    """An interval in other units.

    >>> scaled(Interval(0.5, 0.25, 0.75, 3), 100.0)
    Interval(value=50.0, low=25.0, high=75.0, count=3)
    """
    return Interval(interval.value * scale, interval.low * scale, interval.high * scale, interval.count)


def heads_of(found: Standings, *, naming: bool = True) -> tuple[str, ...]:
    """Of the table; the model is named where there are several, unless told otherwise."""
    unit = " in %" if scale_of(found) == 100 else ""
    points = " in points" if unit else ""
    interval = "" if _has_one_seed(found) else " [95 %]"
    return (
        "remedy",
        *(["model"] if naming and len(found.plan.models) > 1 else []),
        "rate",
        f"{found.plan.score}{unit}{interval}",
        f"minus plain{points}{interval}",
        "verdict",
        "cosine, start → end",
        "step time",
        "memory",
        "failures",
    )


def cells_of(found: Standings, line: Standing, *, naming: bool = True) -> tuple[str, ...]:
    """A line of the table."""
    return (
        line.entrant.remedy,
        *([line.entrant.model] if naming and len(found.plan.models) > 1 else []),
        _rate(line),
        _told(found, line.score, 1),
        _told(found, line.difference, 2),
        line.verdict or ("not finished" if _is_open(found, line) else "–"),
        f"{_last(line.start)} → {_last(line.end)}" if line.start or line.end else "–",
        f"{line.timing.ratio:.2f}×" if line.timing else "–",
        _memory(line),
        _briefly(line),
    )


def _is_open(found: Standings, line: Standing) -> bool:
    """Whether a verdict may still come, from its own runs or from those of the plain model."""
    plain = next(one for one in found.of(line.entrant.model) if one.entrant.remedy == PLAIN)
    unable = any(failure.partition(":")[0] in ("refused", "failed") for failure in line.failures)
    return not unable and not (line.done and plain.done)


def _has_one_seed(found: Standings) -> bool:
    return len(found.plan.seeds) == 1


def _told(found: Standings, interval: Interval | None, digits: int) -> str:
    """A number with its interval; one seed has none, which a note says once. `digits` are those of percents."""
    if interval is None:
        return "–"
    scale = scale_of(found)
    told = scaled(interval, scale)
    if scale == 1:
        return spoken(told.value, 3) if _has_one_seed(found) else in_words(told)
    value, low, high = (f"{one:.{digits}f}".replace("-", "−") for one in (told.value, told.low, told.high))
    if _has_one_seed(found):
        return value
    return f"{value} [{low}, {high}]" if math.isfinite(told.low) else f"{value} (no interval from {told.count})"


def failures_of(found: Standings) -> list[str]:
    """What failed, and why."""
    return [f"{_called(found, line.entrant)} {failure}" for line in found.lines for failure in line.failures]


def _briefly(line: Standing) -> str:
    """What failed, without why.

    >>> from unsmooth.arena import Entrant
    >>> _briefly(Standing(Entrant("vit", "deepnorm"), failures=("refused: it has its norms before the branches.",)))
    'refused'
    """
    return "; ".join(failure.partition(":")[0] for failure in line.failures) or "none"


def _rate(line: Standing) -> str:
    """A rate at the end of its grid is marked."""
    return "–" if line.choice is None else f"{line.choice.rate:g}{' (edge)' if line.choice.edge else ''}"


def _last(curve: object) -> str:
    return Precision()(curve[-1].value if isinstance(curve, list | tuple) and curve else None)


def _memory(line: Standing) -> str:
    known = line.timing.memory if line.timing else None
    return "–" if known is None else f"{known / _MEBIBYTE:,.0f} MiB"


def sentence_of(found: Standings) -> str:
    """How many remedies were shown to be better or worse than the plain model; of a single model, which."""
    others = [line for line in found.lines if line.entrant.remedy != PLAIN]
    count = f"{len(others)} remedied model{'' if len(others) == 1 else 's'}"
    if _has_one_seed(found):
        return f"{count}, one seed each: no interval, so no verdict."
    better, worse, neither = (
        [line.entrant.remedy for line in others if line.verdict == word]
        for word in ("better", "worse", "no difference shown")
    )
    # With several models the names would fill a screen.
    shown = (
        _shown(better, worse) if len(found.plan.models) == 1 else f"{len(better)} better than plain, {len(worse)} worse"
    )
    rest = len(others) - len(better) - len(worse) - len(neither)
    open_ones = f"; {rest} without a comparison" if rest else ""
    return f"Of {count}, {shown}; no difference shown for {len(neither)}{open_ones}."


def findings_of(found: Standings) -> list[str]:
    """Of several models a line each: which remedies were shown to be better or worse; empty for one model or seed."""
    if len(found.plan.models) == 1 or _has_one_seed(found):
        return []
    said = []
    for model in found.plan.models:
        better, worse = (
            [line.entrant.remedy for line in found.of(model) if line.verdict == word] for word in ("better", "worse")
        )
        said.append(f"{model}: {_shown(better, worse)}.")
    return said


def _shown(better: Sequence[str], worse: Sequence[str]) -> str:
    return f"better than plain: {', '.join(better) or 'none'}; worse than plain: {', '.join(worse) or 'none'}"


def _called(found: Standings, entrant: Entrant) -> str:
    return f"{entrant.remedy} ({entrant.model})" if len(found.plan.models) > 1 else entrant.remedy


def rates_in_words(rates: Sequence[float], widen: int) -> str:
    """From which learning rates one is chosen.

    >>> rates_in_words([0.001, 0.003], 2)
    '0.001, 0.003 and, beyond an end of these where the best lies there, up to 2 more'
    """
    more = f" and, beyond an end of these where the best lies there, up to {widen} more" if widen else ""
    return ", ".join(f"{rate:g}" for rate in rates) + more


def rates_chosen_on(hold_out: float) -> str:
    """On which samples, in a sentence.

    >>> rates_chosen_on(0.1)[:64]
    'These runs learn from 90 % of the training samples and are judge'
    """
    if not hold_out:
        return "These runs are judged on the test set, as the scores are: a rate may suit it a little by chance."
    return (
        f"These runs learn from {100 * (1 - hold_out):g} % of the training samples and are judged on the other "
        f"{100 * hold_out:g} %, the same for all: no rate was chosen on the test set. Scored runs learn from all."
    )


def notes_of(found: Standings) -> tuple[str, ...]:
    """How the numbers came about, and what to bear in mind."""
    return tuple(_notes(found))


def _notes(found: Standings) -> Iterator[str]:
    plan, made = found.plan, found.made
    steps = ", ".join(f"{name}: {count:,}" for name, count in found.steps.items())
    if plan.budget is None:
        why = "as the recipe has it"
    elif plan.budget.steps is not None:
        why = "as asked for"
    else:
        why = f"as many as a plain run makes in {plan.budget.text}, alone on the device"
    yield f"Every scored run of a model makes the same number of steps, {why} ({steps or 'not settled yet'})."
    if len(plan.rates) > 1:
        grid = rates_in_words(plan.rates, plan.widen)
        shorter = "" if plan.probe == 1 else f", {plan.probe:g} times as long as the others"
        yield (
            f"Each remedy on each model has its own learning rate, the best of {grid} in runs of seed "
            f"{plan.probe_seed}, which is never scored{shorter}; ties go to the lowest. A rate marked as edge is "
            f"the last that was tried: a better one might lie beyond. {rates_chosen_on(plan.hold_out)}"
        )
    if _has_one_seed(found):
        yield "One seed has no interval, so there are no verdicts; --seeds 3 gives both."
    else:
        yield (
            f"Intervals are Student's over {_seeds(found)}; differences are paired by seed. A verdict needs all "
            "seeds, and the whole interval on one side of 0."
        )
    compared = sum(bool(line.verdict) for line in found.lines)
    if compared > 1:
        by_chance = f"{compared * (1 - LEVEL):.1f}".rstrip("0").rstrip(".")
        yield f"Of {compared} comparisons of models that do not differ, about {by_chance} would be called different."
    shares = max(made.get("side_by_side") or [1]) > 1
    yield (
        "Cosine is the mean pairwise cosine of tokens at the last layer, before and after training. Step time is that "
        "of the whole training step over the plain model's, both in turns in one process"
        f"{' while others used the device too, so that it wavers' if shares else ''}; memory is the highest of one "
        "run alone on a GPU."
    )
    if any(line.guessed for line in found.lines):
        yield "A run whose loss stopped being a number counts with the score of guessing."
    data = [one for one in made.get("data", []) if isinstance(one, dict)]
    if any(one.get("synthetic") for one in data):
        yield "The data are made up: this shows that the arena runs, not which remedy helps."
    hardware = ", ".join(made.get("hardware", []))
    commits = ", ".join(one[:10] + "+" * one.endswith("+") for one in made.get("commits", []))
    minutes = f", {made['gpu_minutes']:g} GPU minutes" if made.get("gpu_minutes") else ""
    shared = f", up to {max(made['side_by_side'])} runs at a time" if shares else ""
    yield f"{made.get('runs', 0)} runs on {hardware or 'nothing yet'}{minutes}{shared}; commit {commits or 'unknown'}."


def _seeds(found: Standings) -> str:
    """Those that intervals rest on."""
    wanted = len(found.plan.seeds)
    counts = [one.count for line in found.lines for one in (line.score, line.difference) if one is not None]
    if all(count == wanted for count in counts):
        return f"{wanted} seeds"
    return f"those of {wanted} seeds that count, {min(counts)} or more"
