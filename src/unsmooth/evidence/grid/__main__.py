"""``python -m unsmooth.evidence.grid``: run the pieces of a registration one after another, and tabulate them."""

from __future__ import annotations

import argparse
import json
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from unsmooth.errors import UnsmoothError, expected
from unsmooth.evidence.grid.images import pictures
from unsmooth.evidence.grid.judging import table, twins_of
from unsmooth.evidence.grid.piece import file_of, missing, operations, read_piece, run_piece, speed
from unsmooth.evidence.grid.registration import Piece, Registration, registered
from unsmooth.evidence.grid.verdicts import verdicts
from unsmooth.evidence.written import write_json


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
        if given.verb == "plan":
            return _plan(registration, folder, pieces, given.device)
        return _run(registration, folder, pieces, given)
    except UnsmoothError as error:
        print(f"unsmooth: {error}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m unsmooth.evidence.grid", description=__doc__)
    parser.add_argument("verb", choices=("plan", "run", "table", "pack"), help="pack writes the images as one file")
    parser.add_argument("registration", help="a name, or a JSON file")
    parser.add_argument("--runs", type=Path, default=Path("runs/grid"), help="folder of results")
    parser.add_argument("--data", type=Path, default=Path("data/cifar100"), help="data folder, or a file of `pack`")
    parser.add_argument(
        "--out", type=Path, help="what `table` and `pack` write; evidence/full/grid/NAME.json, grid.npz"
    )
    parser.add_argument("--pieces", nargs="*", default=[], help="only those whose names begin so, such as post-24")
    parser.add_argument(
        "--part", default="1/1", help="of the pieces, such as 2/3: for several commands beside each other"
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument(
        "--attention", choices=("any", "math"), default="any", help="math: plain products, no fused kernel"
    )
    parser.add_argument("--minutes", type=float, help="begin nothing that would take longer")
    parser.add_argument("--longer", action="store_true", help="then train longer what neither trains nor fails")
    parser.add_argument("--members-at-a-time", type=int, help="default: as many as the memory holds")
    return parser


def _chosen(registration: Registration, given: argparse.Namespace) -> list[Piece]:
    part, parts = (int(word) for word in given.part.split("/"))
    begin = tuple(given.pieces) or ("",)
    return [piece for piece in registration.all_pieces() if piece.name.startswith(begin)][part - 1 :: parts]


def _plan(registration: Registration, folder: Path, pieces: list[Piece], device: str) -> int:
    """What there is to do, and about how long it takes."""
    members = seconds = 0.0
    for piece in pieces:
        found = read_piece(file_of(folder, piece), registration) or {"members": []}
        wanted = missing(registration, found["members"], twins_of(registration, folder, piece.width))
        members += len(wanted)
        seconds += sum(operations(registration, piece, member) for member in wanted) / speed(found, device)
    print(f"{registration.name} {registration.digest}: {len(pieces)} pieces, {members:.0f} members to train,")
    print(f"about {seconds / 60:.1f} minutes on {device}, then what their losses lead to. {registration.budget}")
    return 0


def _run(registration: Registration, folder: Path, pieces: list[Piece], given: argparse.Namespace) -> int:
    if registration.after is not None:
        before = registered(registration.after)
        said = verdicts(before, given.runs / before.name).get("go", "not run in full")
        if said != "go on":
            hint = f"`python -m unsmooth.evidence.grid run {before.name}` first"
            raise expected(f"that {before.name} says to go on with {registration.name}", said, hint)
    end = None if given.minutes is None else time.monotonic() + 60 * given.minutes
    done = []
    for piece in pieces:
        with sdpa_kernel([SDPBackend.MATH]) if given.attention == "math" else nullcontext():
            whole = run_piece(
                folder,
                piece,
                registration,
                given.data,
                device=given.device,
                at_a_time=given.members_at_a_time,
                until=end,
                twins=twins_of(registration, folder, piece.width) if given.longer else None,
                tell=lambda line: print(line, flush=True),
            )
        done.append(whole)
    print(json.dumps({"pieces": len(done), "done": sum(done)}))
    return 0 if all(done) else 3


if __name__ == "__main__":
    sys.exit(main())
