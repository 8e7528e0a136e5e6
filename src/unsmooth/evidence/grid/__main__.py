"""``python -m unsmooth.evidence.grid``: run the pieces of a registration one after another, and tabulate them."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from unsmooth.errors import UnsmoothError, expected
from unsmooth.evidence.grid.data import pictures
from unsmooth.evidence.grid.judging import table, twins_of
from unsmooth.evidence.grid.piece import file_of, missing, newest, operations, read_piece, run_piece, say, speed
from unsmooth.evidence.grid.registration import Piece, Registration, registered
from unsmooth.evidence.grid.verdicts import verdicts
from unsmooth.evidence.records import write_json
from unsmooth.executing import Crew, Driver, Job, forecast
from unsmooth.executing.worker import Tell
from unsmooth.stopping import Deadline, ended_as_interrupted


def main(words: list[str] | None = None) -> int:
    """Run the command; 0 where all that was asked for is done, 3 where some of it is left, 2 where it was wrong."""
    given = _parser().parse_args(words)
    try:
        registration = registered(given.registration)
        folder = given.runs / registration.name
        if given.verb == "pack":
            print(pictures(given.data, registration.data).write(given.out or Path("grid.npz")))
            return 0
        if given.verb == "table":
            out = given.out or Path("evidence/full/grid") / f"{registration.name}.json"
            print(write_json(out, {**table(registration, folder), **verdicts(registration, folder)}))
            return 0
        pieces = _chosen(registration, given)
        crew = Crew.chosen(given.engine, given.processes, cores=given.cores, gpus=given.gpus, telling=_printed)
        print(_plan(registration, folder, pieces, given, crew), flush=True)
        if given.verb == "plan":
            print(f"Then what their losses lead to. {registration.budget}")
            return 0
        with ended_as_interrupted():
            return _run(registration, folder, pieces, given, crew)
    except UnsmoothError as error:
        print(f"unsmooth: {error}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m unsmooth.evidence.grid", description=__doc__)
    parser.add_argument("verb", choices=("plan", "run", "table", "pack"), help="pack writes the images as one file")
    parser.add_argument("registration", help="a name, or a JSON file")
    parser.add_argument("--runs", type=Path, default=Path("evidence/runs/grid"), help="folder of results")
    parser.add_argument("--data", type=Path, default=Path("data/cifar100"), help="data folder, or a file of `pack`")
    parser.add_argument(
        "--out", type=Path, help="what `table` and `pack` write; evidence/full/grid/NAME.json, grid.npz"
    )
    parser.add_argument("--pieces", nargs="*", default=[], help="only those whose names begin so, such as post-24")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument(
        "--attention", choices=("any", "math"), default="any", help="math: plain products, no fused kernel"
    )
    parser.add_argument("--total-budget", help="such as 2h or 90m: begin nothing that would take longer")
    parser.add_argument("--engine", help="who runs pieces; default this process, or several of them")
    parser.add_argument("--processes", type=int, default=1, help="pieces at a time")
    parser.add_argument("--cores", type=float, help="for each piece")
    parser.add_argument(
        "--gpus", type=float, help="for each piece, where the engine hands them out; may be less than 1"
    )
    parser.add_argument("--longer", action="store_true", help="then train longer what neither trains nor fails")
    parser.add_argument("--members-at-a-time", type=int, help="default: as many as the memory holds")
    return parser


def _chosen(registration: Registration, given: argparse.Namespace) -> list[Piece]:
    return [piece for piece in registration.all_pieces() if piece.name.startswith(tuple(given.pieces) or ("",))]


def _plan(registration: Registration, folder: Path, pieces: list[Piece], given: argparse.Namespace, crew: Crew) -> str:
    """What there is to do, and about how long it takes."""
    members, seconds = 0, 0.0
    for piece in pieces:
        found = read_piece(file_of(folder, piece), registration) or {"members": [], "starts": []}
        wanted = missing(registration, found["members"], twins_of(registration, folder, piece.width))
        members += len(wanted) + max(0, len(registration.starts()) - len(found["starts"]))
        rate = speed(found if "seconds" in found.get("made", {}) else newest(folder), given.device)
        seconds += sum(operations(registration, piece, member) for member in wanted) / rate
    return f"{registration.name} {registration.digest}: {len(pieces)} pieces, {forecast(members, seconds, crew)}"


def _run(registration: Registration, folder: Path, pieces: list[Piece], given: argparse.Namespace, crew: Crew) -> int:
    if registration.after is not None:
        before = registered(registration.after)
        said = verdicts(before, given.runs / before.name).get("go", "not run in full")
        if said != "go on":
            hint = f"`python -m unsmooth.evidence.grid run {before.name}` first"
            raise expected(f"that {before.name} says to go on with {registration.name}", said, hint)
    whole = dict.fromkeys(pieces, False)

    def jobs(longer: bool) -> Iterator[Job]:
        for piece in pieces:
            work = partial(
                run_piece,
                folder,
                piece,
                registration,
                given.data,
                device=given.device,
                at_a_time=given.members_at_a_time,
                twins=twins_of(registration, folder, piece.width) if longer else None,
            )
            yield Job(piece.name, partial(_run_piece, given.attention, work), partial(whole.__setitem__, piece))

    # Whoever is trained longer is so by what shallow twins reached: all of them come first.
    with Driver(folder, crew, Deadline.read(given.total_budget), say) as driver:
        for longer in (False, True) if given.longer else (False,):
            driver.hand_out(partial(jobs, longer))
    print(json.dumps({"pieces": len(whole), "done": sum(whole.values())}))
    return 0 if all(whole.values()) else 3


def _run_piece(attention: str, work: Callable[..., bool], deadline: Deadline, tell: Tell) -> bool:
    with sdpa_kernel([SDPBackend.MATH]) if attention == "math" else nullcontext():
        return work(deadline=deadline, tell=tell)


def _printed() -> AbstractContextManager[Tell]:
    return nullcontext(say)


if __name__ == "__main__":
    sys.exit(main())
