"""Running a piece of a grid: its members side by side, some at a time, into one file that is resumed where it ends."""

from __future__ import annotations

import gzip
import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - as everywhere

from unsmooth.errors import expected
from unsmooth.evidence.grid.data import Characters, Pictures, characters, pictures
from unsmooth.evidence.grid.observing import attention_of, observe, spectra_of
from unsmooth.evidence.grid.registration import HIDDEN, Member, Piece, Registration
from unsmooth.evidence.records import made
from unsmooth.files import finite, read_json, write_whole
from unsmooth.schema import parse
from unsmooth.stopping import Deadline
from unsmooth.training.ensemble import Alone, Ensemble, warm_cosine

FORMAT = 1
# Test images that are looked at inside, and those of a member that pass at a time when it is tested.
PROBE, TESTED = 64, 200
# Of those, the ones whose attention maps are looked at.
MAPS = 8
# The steps at the full rate after which members are looked at.
AFTER = (1, 3)
# Numbers that a loss curve is told in, and the steps at its end over which the loss is taken.
CURVE, LAST = 25, 25
# What is noted of the last layer and the others after some steps, where there are layers.
NOTED = ("log_tdiv", "log_tdiv_patches", "inputs")
_DIGITS = 5
# Floating-point operations in a second, where nothing has been run yet.
_SPEED: Mapping[str, float] = {"cuda": 1.5e13, "cpu": 1.5e10}
# Tensors of the stream's size that a block keeps for its backward pass.
_KEPT = 34

Tell = Callable[[str], object]


def say(line: str) -> None:
    """Print a line, where there is anything in it."""
    if line:
        print(line, flush=True)


def run_piece(
    folder: Path,
    piece: Piece,
    registration: Registration,
    source: Path,
    *,
    device: str = "cpu",
    at_a_time: int | None = None,
    deadline: Deadline | None = None,
    twins: Mapping[float | str, float] | None = None,
    tell: Tell = say,
) -> bool:
    """Train the members of a piece that its file does not have yet.

    Args:
        folder: Of the grid's results; the file in it is called after the piece.
        piece: Which.
        registration: Of the grid.
        source: Where the images are: a data folder, or a file.
        device: Where to train.
        at_a_time: Members side by side; None for as many as the memory holds.
        deadline: What would not be done by then is left for another time.
        twins: Gain to loss of the shallow pre-norm twin, with which skill is worked out; without, no configuration is
            trained longer.
        tell: Called with lines of progress, and at every step with an empty one, as a sign of life.

    Returns:
        Whether the piece is done.

    Raises:
        UnsmoothError: Another registration made what is in the file, or the images are not those registered.
    """
    samples = sample_source(source, registration)
    path = file_of(folder, piece)
    found = read_piece(path, registration) or {"starts": [], "members": []}
    networks: dict[tuple[float | str, int], nn.Module] = {}

    def network_of(start_of: tuple[float | str, int]) -> nn.Module:
        if start_of not in networks:
            networks[start_of] = registration.network(piece, *start_of, samples.classes, samples.side)
        return networks[start_of]

    there = torch.device(device)
    known = {(row["gain"], row["seed"]) for row in found["starts"]}
    if looked_at := [start for start in registration.starts() if start not in known]:
        start = time.monotonic()
        found["starts"] += _observed_starts(
            registration, piece, {one: network_of(one) for one in looked_at}, samples, there
        )
        found["made"] = {**made(there), "device": device, "all_seconds": round(time.monotonic() - start, 2)}
        _write(path, piece, registration, found)
        tell(f"{piece.name}: {len(looked_at)} networks looked at")
    while wanted := missing(registration, found["members"], twins or {}):
        for group in _groups(wanted, _side_by_side(registration, piece, device, at_a_time)):
            start = time.monotonic()
            work = sum(operations(registration, piece, member) for member in group)
            seconds = work / speed(found if "seconds" in found.get("made", {}) else newest(folder), device)
            if deadline is not None and not deadline.allows(seconds):
                tell(f"{piece.name}: {len(wanted)} members left, for want of {seconds:.0f} s")
                return False
            _run(found, network_of, registration, piece, samples, group, there, tell)
            taken = time.monotonic() - start
            before = found.get("made", {}).get("all_seconds", 0.0)
            found["made"] = {
                **made(there),
                "device": device,
                "operations": work,
                "seconds": round(taken, 2),
                "all_seconds": round(before + taken, 2),
            }
            _write(path, piece, registration, found)
            about = f"{len(group)} members of {group[0].steps} steps in {taken:.1f} s"
            tell(f"{piece.name}: {about} ({work / taken:.2g} operations a second)")
    return True


def sample_source(source: Path, registration: Registration) -> Pictures | Characters:
    """Images, or a text, of a registration."""
    return (pictures if registration.data.length is None else characters)(source, registration.data)


def _side_by_side(registration: Registration, piece: Piece, device: str, at_a_time: int | None) -> int:
    if registration.families[piece.family].alone:
        return 1
    return at_a_time or fitting(registration, piece, device)


def file_of(folder: Path, piece: Piece) -> Path:
    """Where a piece's results are."""
    return folder / f"{piece.name}.json.gz"


def read_piece(path: Path, registration: Registration) -> dict[str, Any] | None:
    """What a file has; None where it is not there.

    Raises:
        UnsmoothError: Another registration made it, or it cannot be read.
    """
    try:
        found = read_json(path)
    except FileNotFoundError:
        return None
    if (of := found.get("registration")) != registration.digest:
        got = f"one of {str(of)[:40]}"
        raise expected(f"a piece of {registration.name} {registration.digest} in {path}", got, "another folder")
    for part in ("starts", "members"):
        parse(tuple[dict[str, Any], ...], found.get(part), where=f"{part} of {path}")
    return found


def _write(path: Path, piece: Piece, registration: Registration, found: Mapping[str, Any]) -> None:
    whole = {"format": FORMAT, "registration": registration.digest, "name": registration.name, "piece": asdict(piece)}
    text = json.dumps(finite({**whole, **found}), separators=(",", ":"))
    write_whole(path, gzip.compress(text.encode(), mtime=0))


def missing(
    registration: Registration, rows: Sequence[Mapping[str, Any]], twins: Mapping[float | str, float]
) -> list[Member]:
    """What the registration asks for, after what has been run: its members, then what their losses lead to.

    The next rate where the best one is at an end of those tried; more seeds at the best one; and where the skill is
    between the limits, the best rate and its neighbours for longer.
    """
    have = {_member(row) for row in rows}
    base = [member for member in registration.members() if member not in have]
    if base:
        return base
    wanted: list[Member] = []
    for gain in registration.gains if registration.training.steps else ():
        steps, losses = registration.training.steps, median_losses(registration, rows, gain)
        rate = best_rate(losses)
        more, around = next_rate(registration, losses), neighbours(registration, rate)
        if more is not None:
            wanted += [Member(gain, more, seed, steps) for seed in registration.seeds]
            continue
        wanted += [Member(gain, rate, seed, steps) for seed in registration.more_seeds]
        if registration.longer > 1 and gain in twins and losses:
            value = skill(losses[rate], twins[gain], registration)
            if registration.limits["fails"] <= value <= registration.limits["trains"]:
                longer = steps * registration.longer
                wanted += [Member(gain, one, seed, longer) for one in around for seed in registration.seeds]
    return [member for member in wanted if member not in have]


def median_losses(
    registration: Registration, rows: Sequence[Mapping[str, Any]], gain: float | str, longer: int = 1
) -> dict[float, float]:
    """Rate to loss, in the median over the seeds that all rates have; what is no number counts as that of chance."""
    steps, found = registration.training.steps * longer, dict[float, list[float]]()
    for row in rows:
        if row["gain"] == gain and row["steps"] == steps and row["seed"] in registration.seeds:
            found.setdefault(row["rate"], []).append(registration.data.chance if row["last"] is None else row["last"])
    return {rate: statistics.median(losses) for rate, losses in sorted(found.items())}


def skill(loss: float, twin: float, registration: Registration) -> float:
    """S = (H₀ − L)/(H₀ − L₆)."""
    return (registration.data.chance - loss) / (registration.data.chance - twin)


def best_rate(losses: Mapping[float, float]) -> float:
    """The rate of the smallest loss.

    >>> best_rate({0.1: 3.0, 0.3: 2.0, 1.0: 4.0})
    0.3
    """
    return min(losses, key=losses.__getitem__)


def next_rate(registration: Registration, losses: Mapping[float, float]) -> float | None:
    """The rate to be tried next, where the best one is at an end of those tried and the ladder goes on."""
    tried, best = sorted(losses), registration.ladder.index(best_rate(losses))
    if registration.ladder[best] == tried[0] and best > 0:
        return registration.ladder[best - 1]
    if registration.ladder[best] == tried[-1] and best + 1 < len(registration.ladder):
        return registration.ladder[best + 1]
    return None


def neighbours(registration: Registration, rate: float) -> tuple[float, ...]:
    """A rate with those beside it on the ladder."""
    at = registration.ladder.index(rate)
    return registration.ladder[max(0, at - 1) : at + 2]


def operations(registration: Registration, piece: Piece, member: Member) -> float:
    """Floating-point operations of a training: forward and backward, matrices and attention."""
    tokens, width = registration.tokens(), piece.width
    forward = 2 * (4 + 2 * HIDDEN) * tokens * width**2 + 4 * tokens**2 * width
    return 3.0 * forward * max(0.1, piece.depth) * registration.training.batch * member.steps


def speed(found: Mapping[str, Any], device: str) -> float:
    """Operations in a second: those of the last run of the piece on such a device, or what is usual."""
    last = found.get("made") or {}
    kind = torch.device(device).type
    if "seconds" in last and str(last["device"]).startswith(kind):
        return float(last["operations"]) / max(1e-3, float(last["seconds"]))
    return _SPEED.get(kind, _SPEED["cpu"])


def newest(folder: Path) -> dict[str, Any]:
    """The piece that was written last, whoever wrote it; empty where there is none."""
    paths = sorted(folder.glob("*.json.gz"), key=lambda path: path.stat().st_mtime)
    return read_json(paths[-1]) if paths else {}


def fitting(registration: Registration, piece: Piece, device: str) -> int:
    """How many members the memory of a device holds side by side."""
    stream = registration.training.batch * registration.tokens() * piece.width * 4
    weights = 4 * 8 * piece.depth * (4 + 2 * HIDDEN) * piece.width**2
    room = 3e9
    if torch.device(device).type == "cuda":
        torch.cuda.empty_cache()
        room = 0.85 * torch.cuda.mem_get_info(device)[0]
    return max(1, int(room / (max(1, piece.depth) * _KEPT * stream + weights)))


def _groups(wanted: Sequence[Member], at_a_time: int) -> list[list[Member]]:
    """Members of one number of steps, so many at a time, as even as may be."""
    found = []
    for steps in sorted({member.steps for member in wanted}):
        same = [member for member in wanted if member.steps == steps]
        parts = -(-len(same) // at_a_time)
        each = -(-len(same) // parts)
        found += [same[at : at + each] for at in range(0, len(same), each)]
    return found


def _run(
    found: dict[str, Any],
    network_of: Callable[[tuple[float | str, int]], nn.Module],
    registration: Registration,
    piece: Piece,
    samples: Pictures | Characters,
    group: Sequence[Member],
    device: torch.device,
    tell: Tell,
) -> None:
    """Train a group, and put what is known of it into `found`."""
    family, settings = registration.families[piece.family], registration.training
    starts = list(dict.fromkeys((member.gain, member.seed) for member in group))
    known = {(row["gain"], row["seed"]) for row in found["starts"]}
    unknown = {one: network_of(one) for one in starts if one not in known}
    found["starts"] += _observed_starts(registration, piece, unknown, samples, device)
    places = [starts.index((member.gain, member.seed)) for member in group]
    networks = [network_of(one) for one in starts]
    ensemble = Alone(networks[0], device) if family.alone else Ensemble(networks, places, device)
    if family.knobs is not None:
        ensemble.scale_rates(family.knobs.rates(ensemble.names, piece.depth))
    rows: list[dict[str, Any]] = [asdict(member) for member in group]
    drawn = samples.batches([member.seed for member in group], group[0].steps, settings, device)

    def batches(step: Tensor) -> tuple[Tensor, Tensor]:
        tell("")
        return drawn(step)

    inputs, labels = samples.probe(PROBE, device)
    inputs = inputs.float() if inputs.is_floating_point() else inputs
    rates = torch.tensor([member.rate for member in group], dtype=torch.float64)
    options: dict[str, Any] = {"weight_decay": settings.weight_decay, "clip": settings.clip}
    before = observe(ensemble, inputs, labels)
    with ensemble.restored():
        for done, after in zip((0, *AFTER), AFTER, strict=False):
            # Steps of one optimiser: those that were done are not done again.
            ensemble.train(batches, rates.expand(after, -1), **options, capture=False, first=done)
            _note(rows, f"after{after}", observe(ensemble, inputs, labels), before)
    warm = warm_cosine(group[0].steps, settings.warmup, rates.tolist())
    losses, norms = ensemble.train(batches, warm, **options, tell=tell)
    _note(rows, "end", observe(ensemble, inputs, labels), before)
    tested = _tested(ensemble, samples, device)
    curve = torch.unflatten(losses, 0, (CURVE, -1)).mean(dim=1) if len(losses) % CURVE == 0 else losses
    for place, row in enumerate(rows):
        row |= {
            "last": float(losses[-LAST:, place].double().mean()),
            "losses": numbers(curve[:, place]),
            "norm_first": numbers(norms[0, place]),
            "norm_median": numbers(norms[:, place].nanmedian()),
            "clipped": float((norms[:, place] > settings.clip).double().mean()),
            **{name: numbers(values[place]) for name, values in tested.items()},
        }
        if "spectra" in (registration.look or ()):
            row["spectra"] = spectra_of(networks[places[place]], ensemble.member(place))
    found["members"] += rows


def _observed_starts(
    registration: Registration,
    piece: Piece,
    networks: Mapping[tuple[float | str, int], nn.Module],
    samples: Pictures | Characters,
    device: torch.device,
) -> list[dict[str, Any]]:
    """Of every network that is started from: layers, forward and backward, in double and in single precision."""
    rows: list[dict[str, Any]] = [{"gain": gain, "seed": seed} for gain, seed in networks]
    inputs, labels = samples.probe(PROBE, device)
    alone, trained = registration.families[piece.family].alone, registration.training.steps > 0
    for dtype in (torch.float64, torch.float32)[: 2 if trained else 1] if rows else ():
        given = inputs.to(dtype) if inputs.is_floating_point() else inputs
        place = 0
        for some in [[one] for one in networks.values()] if alone else [list(networks.values())]:
            ensemble = Alone(some[0], device, dtype) if alone else Ensemble(some, device=device, dtype=dtype)
            seen = observe(ensemble, given, labels, gradients=trained)
            if "attention" in (registration.look or ()):
                seen |= attention_of(ensemble, given[:MAPS])
            seen["logits"] = seen["logits"].square().mean(dim=(1, 2)).sqrt()
            for each in range(ensemble.size):
                row = {name: numbers(values[each]) for name, values in seen.items()}
                rows[place][str(dtype).removeprefix("torch.")] = row
                place += 1
    return rows


def _note(rows: list[dict[str, Any]], when: str, seen: Mapping[str, Tensor], before: Mapping[str, Tensor]) -> None:
    """What became of the output, of tokens and of samples, for each member."""
    change = (seen["logits"] - before["logits"]).square().mean(dim=(1, 2)).sqrt()
    size = seen["logits"].square().mean(dim=(1, 2)).sqrt()
    for place, row in enumerate(rows):
        row[when] = {
            "change": numbers(change[place]),
            "logits": numbers(size[place]),
            "loss": numbers(seen["loss"][place]),
            **{name: numbers(seen[name][place]) for name in NOTED if name in seen},
        }


@torch.no_grad()
def _tested(ensemble: Ensemble, samples: Pictures | Characters, device: torch.device) -> dict[str, Tensor]:
    """Accuracy and loss of each member on what is kept for tests."""
    right, lost, count = torch.zeros(ensemble.size, device=device), torch.zeros(ensemble.size, device=device), 0
    ensemble.network.eval()
    for some, wanted in samples.tests(TESTED, device):
        logits = ensemble(some.expand(ensemble.size, *some.shape))
        every = wanted.expand(ensemble.size, *wanted.shape)
        right += (logits.argmax(dim=-1) == every).flatten(1).sum(dim=1)
        each = F.cross_entropy(logits.flatten(0, -2), every.flatten(), reduction="none")
        lost += each.view(ensemble.size, -1).sum(dim=1)
        count += wanted.numel()
    ensemble.network.train()
    return {"test": right / count, "test_loss": lost / count}


def _member(row: Mapping[str, Any]) -> Member:
    return Member(row["gain"], row["rate"], row["seed"], row["steps"])


def numbers(values: Tensor) -> Any:
    """Plain numbers of as many digits as anybody reads.

    >>> numbers(torch.tensor([1.2345678, 2.0]))
    [1.2346, 2.0]
    """
    plain = values.detach().double().cpu().tolist()
    cut = [float(f"{one:.{_DIGITS}g}") for one in (plain if isinstance(plain, list) else [plain])]
    return cut if isinstance(plain, list) else cut[0]
