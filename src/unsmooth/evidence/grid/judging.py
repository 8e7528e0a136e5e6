"""What the members of a grid come to: configurations with their skill, and one table of all runs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from unsmooth.evidence.grid.piece import best_rate, file_of, median_losses, read_piece, skill
from unsmooth.evidence.grid.registration import Piece, Registration

# The configuration that every skill is measured against, at the same width and gain.
TWIN, TWIN_DEPTH = "pre", 6
_COLUMNS = ("gain", "rate", "seed", "steps", "last", "test", "test_loss", "norm_first", "norm_median", "clipped")
_INSIDE = ("change", "logits", "loss", "log_tdiv", "log_tdiv_patches", "inputs")


def twins_of(registration: Registration, folder: Path, width: int) -> dict[float | str, float]:
    """Gain to the loss of the twin, L₆; empty where it has not been run."""
    found = read_piece(file_of(folder, Piece(TWIN, TWIN_DEPTH, width)), registration)
    made = {}
    for gain in registration.gains if found else ():
        losses = median_losses(registration, found["members"], gain) if found else {}
        if losses:
            made[gain] = min(losses.values())
    return made


def configurations(registration: Registration, folder: Path) -> Iterator[dict[str, Any]]:
    """Every configuration that was run, with its best rate, its skill and what the rule says of it.

    "edge" where the best rate is at an end of those tried, "slow" where more steps leave it between the limits,
    "between" where it has not been run longer, "no twin" where there is nothing to measure it against.
    """
    for piece in registration.all_pieces():
        found = read_piece(file_of(folder, piece), registration)
        if found is None:
            continue
        twins = twins_of(registration, folder, piece.width)
        starts = {(row["gain"], row["seed"]): row for row in found["starts"]}
        for gain in registration.gains:
            losses = median_losses(registration, found["members"], gain)
            if not losses:
                continue
            row: dict[str, Any] = {"family": piece.family, "depth": piece.depth, "width": piece.width, "gain": gain}
            row |= {"rate": best_rate(losses), "loss": losses[best_rate(losses)]}
            row |= {"losses": {f"{rate:g}": loss for rate, loss in losses.items()}}
            row |= {"start": _start(starts[gain, registration.seeds[0]])}
            row |= {"change": _change(found["members"], gain)}
            if gain not in twins:
                yield {**row, "skill": None, "outcome": "no twin"}
                continue
            row["skill"] = skill(row["loss"], twins[gain], registration)
            longer = median_losses(registration, found["members"], gain, registration.longer)
            row["longer"] = skill(min(longer.values()), twins[gain], registration) if longer else None
            trains = [
                rate
                for rate, loss in losses.items()
                if _outcome(registration, skill(loss, twins[gain], registration)) == "trains"
            ]
            row["largest_rate"] = max(trains) if trains else None
            at_edge = row["rate"] in (min(losses), max(losses)) and row["skill"] >= registration.limits["fails"]
            row["outcome"] = "edge" if at_edge else _judged(registration, row)
            yield row


def _outcome(registration: Registration, value: float) -> str:
    """Trains, fails, or between."""
    if value > registration.limits["trains"]:
        return "trains"
    return "fails" if value < registration.limits["fails"] else "between"


def _judged(registration: Registration, row: Mapping[str, Any]) -> str:
    outcome = _outcome(registration, row["skill"])
    if outcome != "between" or row["longer"] is None:
        return outcome
    again = _outcome(registration, row["longer"])
    return "slow" if again == "between" else again


def _start(row: Mapping[str, Any]) -> dict[str, Any]:
    """The state of the last layer at the start, in double precision, and how far norms grow."""
    seen = row["float64"]
    found = {"gradient_norm": seen["gradient_norm"]}
    if "norm" in seen:
        found |= {
            "log_tdiv": seen["log_tdiv"][-1],
            "cosine": seen["cosine"][-1],
            "inputs": seen["inputs"][-1],
            "growth": seen["norm"][-1] / seen["norm"][0],
            "gradient_ratio": seen["gradient"][1] / max(seen["gradient"][-1], 1e-300),
        }
    return found


def _change(rows: Sequence[Mapping[str, Any]], gain: float | str) -> float | None:
    """How far the output moves in one step at the rate nearest to 1e-3, in the median over seeds."""
    same = [row for row in rows if row["gain"] == gain]
    rate = min((row["rate"] for row in same), key=lambda one: abs(math.log(one / 1e-3)))
    moved = [row["after1"]["change"] for row in same if row["rate"] == rate and row["after1"]["change"] is not None]
    return statistics.median(moved) if moved else None


def table(registration: Registration, folder: Path) -> dict[str, Any]:
    """All runs in columns, the configurations, and what made them: what is kept beside the pieces, which are large."""
    names = [
        "family",
        "depth",
        "width",
        *_COLUMNS,
        *(f"{when}_{name}" for when in ("after1", "after3", "end") for name in _INSIDE),
    ]
    rows: list[list[Any]] = []
    made: dict[str, Any] = {}
    for piece in registration.all_pieces():
        found = read_piece(file_of(folder, piece), registration)
        for row in found["members"] if found else ():
            inside = [_last(row[when].get(name)) for when in ("after1", "after3", "end") for name in _INSIDE]
            rows.append([piece.family, piece.depth, piece.width, *(row.get(name) for name in _COLUMNS), *inside])
        if found:
            made[piece.name] = found["made"]
    return {
        "registration": registration.digest,
        "name": registration.name,
        "columns": names,
        "rows": rows,
        "configurations": list(configurations(registration, folder)),
        "made": {
            **{name: _each(made, name) for name in ("commit", "hardware", "when")},
            "seconds": round(sum(one.get("all_seconds", 0.0) for one in made.values()), 1),
            "pieces": made,
        },
    }


def _each(made: Mapping[str, Mapping[str, Any]], name: str) -> str:
    """What pieces have in common, or each of what they have."""
    return ", ".join(sorted({str(one.get(name) or "not known") for one in made.values()}))


def _last(value: Any) -> Any:
    return value[-1] if isinstance(value, list) else value
