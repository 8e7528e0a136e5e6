"""What studies say: the rules of their registrations applied to what was run; nothing where something is missing."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy

from unsmooth.evidence.grid.judging import configurations, twins_of
from unsmooth.evidence.grid.piece import best_rate, file_of, median_losses, missing, next_rate, read_piece
from unsmooth.evidence.grid.registration import Contrast, Piece, Registration
from unsmooth.evidence.interval import LEVEL, Interval, over_seeds

# What is held against whether a configuration trains, where causes are looked for.
_VARIABLES = ("log_tdiv", "gradient_ratio", "gradient_norm", "change")
_RESAMPLES = 2000


def verdicts(registration: Registration, folder: Path) -> dict[str, Any]:
    """Everything that the registration judges, with what is still missing."""
    lacking = {
        piece.name: lack for piece in registration.all_pieces() if (lack := _lacking(registration, folder, piece))
    }
    found: dict[str, Any] = {"missing": lacking}
    if registration.contrasts:
        found |= compared(registration, folder)
    look = registration.look or ()
    if "attention" in look:
        found |= escalation(registration, folder)
    if "spectra" in look:
        found |= radii(registration, folder)
    if "causes" in look:
        found |= causes(registration, folder)
    return found


def _lacking(registration: Registration, folder: Path, piece: Piece) -> str | None:
    """What a piece has not got yet, in words."""
    found = read_piece(file_of(folder, piece), registration)
    if found is None:
        return "not run"
    starts = {(row["gain"], row["seed"]) for row in found["starts"]}
    if any(start not in starts for start in registration.starts()):
        return "networks to be looked at"
    left = len(missing(registration, found["members"], twins_of(registration, folder, piece.width)))
    return f"{left} members or more to train" if left else None


def by_seed(registration: Registration, folder: Path, piece: str, gain: float | str, measure: str) -> dict[int, float]:
    """A measure of a configuration at its best rate by seed; a training that ended without numbers counts as chance.

    Raises:
        LookupError: In words, why there is nothing to judge.
    """
    known = {one.name: one for one in registration.all_pieces()}
    found = read_piece(file_of(folder, known[piece]), registration)
    losses = median_losses(registration, found["members"], gain) if found else {}
    if found is None or missing(registration, found["members"], {}):
        raise LookupError(f"{piece} has not been run in full")
    chance, rate = registration.data.chance, best_rate(losses)
    flat = min(losses.values()) > (1 - registration.limits["flat"]) * chance
    if rate in (min(losses), max(losses)) and not flat:
        assert next_rate(registration, losses) is None, "else it would be missing"
        raise LookupError(f"the best rate of {piece} at {gain} is {rate:g}, an end of the ladder")
    seeds = registration.more_seeds or registration.seeds
    guess = {"test": math.exp(-chance), "test_loss": chance}[measure]
    rows = {row["seed"]: row for row in found["members"] if (row["gain"], row["rate"]) == (gain, rate)}
    numberless = {seed for seed in seeds if rows[seed]["last"] is None or rows[seed][measure] is None}
    return {seed: guess if seed in numberless else float(rows[seed][measure]) for seed in seeds}


def compared(registration: Registration, folder: Path) -> dict[str, Any]:
    """Each contrast with its interval over seeds, and the claims that they decide.

    A claim is "supported" where all its contrasts lie on its side of their margins with their whole intervals, "not
    supported" where one lies on the other side, "undecided" else, and has no verdict where data are missing.
    """
    told, claims = [], dict[str, list[str]]()
    for contrast in registration.contrasts or ():
        row: dict[str, Any] = {"contrast": contrast.name, "claim": contrast.claim, "margin": contrast.margin}
        try:
            interval = _difference(registration, folder, contrast)
            row |= {**interval.to_json(), "lies": _side(interval, contrast.margin)}
        except LookupError as error:
            row |= {"lies": None, "why": str(error.args[0])}
        if contrast.claim is not None:
            says = {contrast.side: "supported", None: "no verdict", "across": "undecided"}
            claims.setdefault(contrast.claim, []).append(says.get(row["lies"], "not supported"))
        told.append(row)
    return {"contrasts": told, "claims": {claim: _together(said) for claim, said in claims.items()}}


def _difference(registration: Registration, folder: Path, contrast: Contrast) -> Interval:
    """First minus second over seeds; their slope over log2 of depth where there are several."""
    rows: list[list[float]] = []
    for names in zip(contrast.first, contrast.second, strict=True):
        first, second = (by_seed(registration, folder, one, contrast.gain, contrast.measure) for one in names)
        rows.append([first[seed] - second[seed] for seed in sorted(first)])
    if len(rows) == 1:
        return over_seeds(rows[0])
    depths = [math.log2(int(name.rsplit("-", 2)[1])) for name in contrast.first]
    return over_seeds([_slope(depths, column) for column in zip(*rows, strict=True)])


def _side(interval: Interval, margin: float) -> str:
    """Where a whole interval lies.

    >>> _side(Interval(0.2, 0.1, 0.3, 10), 0.0), _side(Interval(0.2, -0.1, 0.5, 10), 0.0)
    ('above', 'across')
    """
    return "above" if interval.low > margin else "below" if interval.high <= margin else "across"


def _together(said: Sequence[str]) -> str:
    for verdict in ("no verdict", "not supported", "undecided"):
        if verdict in said:
            return verdict
    return "supported"


def _slope(x: Sequence[float], y: Sequence[float]) -> float:
    """By least squares.

    >>> _slope([1, 2, 3], [5.0, 3.0, 1.0])
    -2.0
    """
    middle_x, middle_y = statistics.fmean(x), statistics.fmean(y)
    over = math.fsum((one - middle_x) ** 2 for one in x)
    return math.fsum((a - middle_x) * (b - middle_y) for a, b in zip(x, y, strict=True)) / over


def escalation(registration: Registration, folder: Path) -> dict[str, Any]:
    """By configuration the rate at which tokens become alike before training, and P2's bound beside it."""
    rows = [row for piece in registration.all_pieces() for row in _escalations(registration, folder, piece)]
    judged = [row for row in rows if row["family"] == "post" and row["gain"] in (0.8, "xavier")]
    whole = len(judged) == 2 * len({piece.width for piece in registration.all_pieces()})
    shapes, bounds = [row["shape"] for row in judged], [row["bound"]["holds"] for row in judged]
    said = "undecided" if "levels off" in shapes else "supported"
    said = "not supported" if "does not escalate" in shapes else said
    of_bound = "not supported" if "violated" in bounds else "undecided" if "undecided" in bounds else "supported"
    return {
        "escalation": rows,
        "claims": {
            "geometric escalation in post-norm": said if whole else "no verdict",
            "escalation is at least P2's bound": of_bound if whole else "no verdict",
        },
    }


def _escalations(registration: Registration, folder: Path, piece: Piece) -> Iterator[dict[str, Any]]:
    found = read_piece(file_of(folder, piece), registration)
    for gain in registration.gains if found else ():
        seen = [row["float64"] for row in (found or {})["starts"] if row["gain"] == gain]
        if len(seen) < len(registration.seeds):
            continue
        slopes, halves, past = list[float](), list[tuple[float, float]](), dict[str, list[float]]()
        for one in seen:
            layers = one["log_tdiv"]
            last = (
                next((at for at, value in enumerate(layers) if value < registration.limits["floor"]), len(layers)) - 1
            )
            blocks = list(range(1, last + 1))
            middle = len(blocks) // 2
            slopes.append(_slope(blocks, layers[1 : last + 1]))
            halves.append(
                (
                    _slope(blocks[:middle], layers[1 : middle + 1]),
                    _slope(blocks[middle:], layers[middle + 1 : last + 1]),
                )
            )
            escaped = [
                1 - math.exp(after - before) for after, before in zip(one["attended"], one["before"], strict=True)
            ]
            for name, left in (("bound", one["second"]), ("bound_one_step", one["gap"])):
                bounds = [
                    _bound(1 - math.exp(before), spread, size)
                    for before, spread, size in zip(one["before"], one["variance"], left, strict=True)
                ]
                past.setdefault(name, []).append(
                    statistics.fmean(r - bound for r, bound in zip(escaped[:last], bounds[:last], strict=True))
                )
        slope, second = over_seeds(slopes), over_seeds([late for _, late in halves])
        early = statistics.fmean(one for one, _ in halves)
        yield {
            "family": piece.family,
            "width": piece.width,
            "gain": gain,
            "slope": slope.to_json(),
            "left_by_a_block": math.exp(slope.value),
            "first_half": early,
            "second_half": second.to_json(),
            "shape": _shape(slope, early, second, registration.limits["levels"]),
            **{
                name: {**(kept := over_seeds(values)).to_json(), "holds": _holds(kept)} for name, values in past.items()
            },
        }


def _shape(slope: Interval, early: float, late: Interval, levels: float) -> str:
    if slope.low >= 0:
        return "does not escalate"
    return "geometric" if late.high < 0 and early < 0 and late.value <= levels * early else "levels off"


def _holds(past: Interval) -> str:
    return "holds" if past.low >= 0 else "violated" if past.high < 0 else "undecided"


def _bound(similarity: float, variance: float, left: float) -> float:
    r"""P2's, as reconstructed: :math:`\sigma^2 s (1 - \lambda^2) / (1 + \sigma^2 (s + \lambda^2 (1 - s)))`.

    >>> _bound(1.0, 1.0, 0.0)  # all alike, and attention keeps nothing but the mean: half is lost
    0.5
    """
    return variance * similarity * (1 - left) / (1 + variance * (similarity + left * (1 - similarity)))


def radii(registration: Registration, folder: Path) -> dict[str, Any]:
    """The spectral radius of each layer's H at the end of training, and whether any layer wants more than 1."""
    rows: list[dict[str, Any]] = []
    for piece in registration.all_pieces():
        found = read_piece(file_of(folder, piece), registration)
        losses = median_losses(registration, found["members"], registration.gains[0]) if found else {}
        if found is None or not losses:
            continue
        seeds = registration.more_seeds or registration.seeds
        chosen = [row for row in found["members"] if row["rate"] == best_rate(losses) and row["seed"] in seeds]
        layers = list(zip(*[[layer["radius"] for layer in row["spectra"]] for row in chosen], strict=True))
        mean = [statistics.fmean(layer) for layer in layers]
        above = [statistics.fmean(value > 1 for value in layer) for layer in layers]
        rows.append(
            {"piece": piece.name, "seeds": len(chosen), "radius": mean, "share_above_1": statistics.fmean(above)}
        )
    said: dict[str, Any] = {"radii": rows}
    plain = [row for row in rows if row["piece"].startswith("plain")]
    if len(registration.all_pieces()) == 1 and plain and plain[0]["seeds"] == len(registration.more_seeds):
        said["go"] = "go on" if max(plain[0]["radius"]) >= 1 else "stop: no layer's radius reaches 1"
    return said


def causes(registration: Registration, folder: Path) -> dict[str, Any]:
    """For each variable how well one threshold tells what trains, on knobs that the threshold has not seen."""
    scored = [row for row in configurations(registration, folder) if row["outcome"] in ("trains", "fails")]
    scored = [row for row in scored if row["family"].startswith("post")]
    points = [
        {
            "knob": row["family"].split("=")[0],
            "trains": row["outcome"] == "trains",
            **{name: _variable(row, name) for name in _VARIABLES},
        }
        for row in scored
    ]
    table = [
        {"family": row["family"], "outcome": row["outcome"], "skill": row["skill"], **point}
        for row, point in zip(scored, points, strict=True)
    ]
    whole = not any(_lacking(registration, folder, piece) for piece in registration.all_pieces())
    both = len({point["trains"] for point in points}) == 2
    if not (whole and both):
        why = "pieces are missing" if not whole else "all of them train, or none"
        return {"causes": table, "claims": {"what decides": "no verdict"}, "why": why}
    told = {name: _left_out(points, name) for name in _VARIABLES}
    ranked = sorted(told, key=lambda name: -told[name])
    generator, knobs = random.Random(0), sorted({point["knob"] for point in points})
    gaps = []
    for _ in range(_RESAMPLES):
        # A knob that is drawn twice is one knob still: what is left out is left out wherever it stands.
        drawn = [point for knob in generator.choices(knobs, k=len(knobs)) for point in points if point["knob"] == knob]
        if len({point["trains"] for point in drawn}) == 2 and len({point["knob"] for point in drawn}) > 1:
            gaps.append(_left_out(drawn, ranked[0]) - _left_out(drawn, ranked[1]))
    low, high = (float(numpy.quantile(gaps, at)) for at in ((1 - LEVEL) / 2, (1 + LEVEL) / 2))
    decided = low > 0 and told[ranked[0]] >= registration.limits["tells"]
    return {
        "causes": table,
        "balanced_accuracy": told,
        "lead": {
            "of": ranked[0],
            "over": ranked[1],
            "value": told[ranked[0]] - told[ranked[1]],
            "low": low,
            "high": high,
        },
        "claims": {"what decides": ranked[0] if decided else "undecided"},
    }


def _variable(row: Mapping[str, Any], name: str) -> float:
    if name == "log_tdiv":
        return float(row["start"][name])
    value = row["change"] if name == "change" else row["start"][name]
    size = math.log(min(max(math.inf if value is None else float(value), 1e-300), 1e300))
    return abs(size) if name == "gradient_ratio" else size


def _left_out(points: Sequence[Mapping[str, Any]], name: str) -> float:
    """Balanced accuracy of a threshold that is fitted on all knobs but one and asked about that one."""
    right: dict[bool, list[bool]] = {True: [], False: []}
    for knob in {point["knob"] for point in points}:
        level, sign = _threshold([point for point in points if point["knob"] != knob], name)
        for point in points:
            if point["knob"] == knob:
                right[point["trains"]].append((sign * (point[name] - level) > 0) == point["trains"])
    return statistics.fmean(statistics.fmean(found) for found in right.values() if found)


def _threshold(points: Sequence[Mapping[str, Any]], name: str) -> tuple[float, int]:
    """The level, and the side of it that trains, with the best balanced accuracy."""
    values = sorted({point[name] for point in points})
    levels = [(low + high) / 2 for low, high in pairwise(values)] or values
    count = {kind: max(1, sum(point["trains"] == kind for point in points)) for kind in (True, False)}

    def score(level: float, sign: int) -> float:
        return math.fsum(
            ((sign * (point[name] - level) > 0) == point["trains"]) / count[point["trains"]] for point in points
        )

    return max(((level, sign) for level in levels for sign in (1, -1)), key=lambda one: score(*one))
