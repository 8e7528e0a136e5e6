"""Every reader of files on disk, given valid files made wrong: one line of `UnsmoothError`, or something usable.

A try is a finding where it raises anything else, takes over two seconds of the processor or 256 MiB, waits for
something other than the processor, opens or writes a file outside of its folder, or where what was read cannot be used.
Tries run in a process of their own, which is begun anew where one ends it or does not come back.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import torch

from tests.fuzz.outcome import Outcome
from tests.fuzz.specimens import SPECIMENS, Specimen
from unsmooth.errors import UnsmoothError

SECONDS, WAITING, BYTES = 2.0, 5.0, 256 << 20
# Of the processor, for a try that does not come back; where others have the machine, it may take long to get so much.
_PATIENCE, _LOOKS = 30.0, 10
_MEMORY = "/dev/shm"
# A refusal that is made in here is the first check's.
_FIRST = ("unsmooth/files.py", "unsmooth/weights.py", "data/pickles.py")


class _Fixed(Random):
    """Always the same chance."""

    def __init__(self, chance: float) -> None:
        super().__init__(0)
        self.chance = chance

    def random(self) -> float:
        """That chance."""
        return self.chance


def run(seed: int, seconds: float, tries: int | None = None, first: bool = False) -> Outcome:
    """See `Outcome`."""
    outcome, counts = Outcome(), {name: Counter[str]() for name in SPECIMENS}
    # In memory where that can be: a disk takes longer for a try's files than what reads them.
    with tempfile.TemporaryDirectory(dir=_MEMORY if os.access(_MEMORY, os.W_OK) else None) as made:
        home = Path(made)
        for name, one in SPECIMENS.items():
            one.write(home / "valid" / name)
        begun, number, warming = time.monotonic(), 0, 0.0
        while (left := seconds + warming - (time.monotonic() - begun)) > 0 and (tries is None or number < tries):
            for line in _worker(home, seed, number, left, tries):
                if "warming" in line:
                    warming += line["warming"]
                    continue
                number = line["number"] + 1
                outcome.tries += 1
                outcome.past += line["past"]
                counts[line["name"]]["tries"] += 1
                counts[line["name"]]["past"] += line["past"]
                if line["wrong"]:
                    found = f"readers seed={seed} number={line['number']} {line['name']}: {line['wrong']}"
                    outcome.findings.append(found)
                    print(found, file=sys.stderr, flush=True)  # of a long run, before its end
                if first and outcome.findings:
                    seconds = 0.0
                    break
    outcome.counts = {name: (found["past"], found["tries"]) for name, found in counts.items()}
    return outcome


def _worker(home: Path, seed: int, start: int, seconds: float, tries: int | None) -> Any:
    """Lines of tries from `start` on, by another process, until that ends or has to be ended."""
    inlet, outlet = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(inlet)
        code = 1
        try:
            _work(home, seed, start, seconds, tries, outlet)
            code = 0
        finally:
            os._exit(code)
    os.close(outlet)
    under_way: dict[str, Any] | None = None
    rest = b""
    try:
        while True:
            begun = _processor(child)
            for _ in range(_LOOKS):
                ready, _, _ = select.select([inlet], [], [], _PATIENCE)
                if ready or _processor(child) - begun > _PATIENCE:
                    break
            spent = _processor(child) - begun
            block = os.read(inlet, 1 << 16) if ready else b""
            *lines, rest = (rest + block).split(b"\n")
            for line in map(json.loads, lines):
                if "number" not in line:
                    yield line
                elif "wrong" in line:
                    under_way = None
                    yield line
                else:
                    under_way = line
            if not block:
                break
    finally:
        os.close(inlet)
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    if under_way is not None:
        wrong = "ended the process" if ready else f"did not come back in {spent:.0f} s of the processor"
        yield under_way | {"past": 1, "wrong": wrong}


def _processor(process: int) -> float:
    """Seconds of the processor that another process has had."""
    words = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def _work(home: Path, seed: int, start: int, seconds: float, tries: int | None, outlet: int) -> None:
    torch.set_num_threads(1)
    os.environ["HF_HUB_OFFLINE"] = "1"
    warnings.simplefilter("ignore")
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    scratch = Path(tempfile.mkdtemp(dir=home))
    seen = _Seen(str(scratch))
    names = [name for name, one in SPECIMENS.items() for _ in range(one.often)]
    # A try that asks for far more is stopped before the machine is. Not address space, of which charts reserve much.
    resource.setrlimit(resource.RLIMIT_DATA, (6 << 30,) * 2)
    end, number, warm = time.monotonic() + seconds, start, set[str]()
    while time.monotonic() < end and (tries is None or number < tries):
        random = Random(f"{seed}/{number}")
        one = SPECIMENS[random.choice(names)]
        if one.name not in warm:  # what it imports is not the try's to pay for
            begun = time.monotonic()
            for chance in (0.0, 0.2, 0.5, 0.9):
                shutil.rmtree(scratch)
                one.read(Path(shutil.copytree(home / "valid" / one.name, scratch)), _Fixed(chance))
            warm.add(one.name)
            end += (took := time.monotonic() - begun)
            os.write(outlet, json.dumps({"warming": took}).encode() + b"\n")
        line = {"number": number, "name": one.name}
        os.write(outlet, json.dumps(line).encode() + b"\n")
        past, wrong = _try(one, home, scratch, random, seen)
        os.write(outlet, json.dumps(line | {"past": past, "wrong": wrong}).encode() + b"\n")
        number += 1


class _Seen:
    """What a try opened below a folder, and whether a first check refused anything, told to the user or not."""

    def __init__(self, folder: str) -> None:
        self.opened: set[str] = set()
        self.refused = False
        sys.addaudithook(lambda event, words: self._open(str(words[0]), folder) if event == "open" else None)
        make = UnsmoothError.__init__

        def refuse(error: UnsmoothError, *words: Any) -> None:
            make(error, *words)
            frame: Any = sys._getframe(1)
            while frame.f_code.co_filename.endswith("unsmooth/errors.py"):
                frame = frame.f_back
            self.refused |= frame.f_code.co_filename.endswith(_FIRST) or frame.f_code.co_name == "_broken"

        UnsmoothError.__init__ = refuse  # type: ignore[method-assign]

    def _open(self, path: str, folder: str) -> None:
        if path.startswith(folder):
            self.opened.add(path)


def _try(one: Specimen, home: Path, scratch: Path, random: Random, seen: _Seen) -> tuple[int, str]:
    """Whether what is wrong was read and got past the first check, and what is wrong with the outcome."""
    shutil.rmtree(scratch, ignore_errors=True)
    folder, outside = scratch / "here", scratch / "outside"
    shutil.copytree(home / "valid" / one.name, folder)
    shutil.copytree(folder, outside / "a")
    changed = one.change(random, folder)
    told = json.dumps(sorted(map(str, outside.rglob("*")))), sorted(map(str, scratch.glob("*")))
    seen.opened.clear()
    seen.refused = False
    Path("/proc/self/clear_refs").write_text("5")
    before, begun, stood = _peak(), time.process_time(), _stood()
    wrong = ""
    try:
        one.read(folder, random)
    except UnsmoothError as error:
        wrong = "several lines" if "\n" in str(error) else "a long line" if len(str(error)) > 2_000 else ""
    except BaseException as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        wrong = f"{type(error).__name__}: {str(error)[:200]!r} at {Path(frame.filename).name}:{frame.lineno}"
    seconds, taken = time.process_time() - begun, _peak() - before
    if not wrong and seconds > SECONDS:
        wrong = f"took {seconds:.1f} s"
    if not wrong and (waited := _stood() - stood - seconds) > WAITING:
        wrong = f"waited for {waited:.1f} s"
    if not wrong and taken > BYTES:
        wrong = f"took {taken / 2**20:.0f} MiB"
    if not wrong and (out := sorted(path for path in seen.opened if path.startswith(str(outside)))):
        wrong = f"opened {out[0]!r}"
    if not wrong and told != (json.dumps(sorted(map(str, outside.rglob("*")))), sorted(map(str, scratch.glob("*")))):
        wrong = "wrote outside of its folder"
    return int(str(changed) in seen.opened and not seen.refused), wrong


def _stood() -> float:
    """Seconds of the clock but those in which others had the processor: a pipe that nobody fills takes many."""
    try:
        others = int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
    except OSError:  # a system that does not count them
        return time.process_time()
    return time.monotonic() - others


def _peak() -> int:
    """The most memory that the process had since that was reset."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) << 10


if __name__ == "__main__":
    chosen, which = int(sys.argv[1]), int(sys.argv[2])
    with tempfile.TemporaryDirectory() as made:
        home = Path(made)
        random = Random(f"{chosen}/{which}")
        one = SPECIMENS[random.choice([name for name, each in SPECIMENS.items() for _ in range(each.often)])]
        one.write(home / "valid" / one.name)
        shutil.copytree(home / "valid" / one.name, home / "here")
        one.change(random, home / "here")
        one.read(home / "here", random)
