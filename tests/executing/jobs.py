"""Work for drivers, in a file that other processes can import."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

from unsmooth.executing import Crew, Driver, Job
from unsmooth.executing.worker import Tell
from unsmooth.stopping import Deadline, asked_to_stop


class OddError(Exception):
    """One that cannot be unpickled."""

    def __init__(self, one: int, other: int) -> None:
        super().__init__(f"{one} and {other}")


def add(folder: Path, name: str, deadline: Deadline, tell: Tell) -> str:
    """Leave a mark; the second time with how often."""
    with (folder / name).open("a") as file:
        file.write(".")
    return f"{name} {len((folder / name).read_text())}"


def stall_twice(folder: Path, deadline: Deadline, tell: Tell) -> None:
    """Wait for ever, two times."""
    if add(folder, "stalls", deadline, tell) in ("stalls 1", "stalls 2"):
        wait_for_ever()


def wait_for_ever() -> None:
    threading.Event().wait()


def end(folder: Path, deadline: Deadline, tell: Tell) -> None:
    """As where memory runs out."""
    add(folder, "ends", deadline, tell)
    os.kill(os.getpid(), signal.SIGKILL)


def end_once(folder: Path, deadline: Deadline, tell: Tell) -> str:
    """The second time all goes well."""
    said = add(folder, "ends", deadline, tell)
    if said == "ends 1":
        os.kill(os.getpid(), signal.SIGKILL)
    return said


def fail(deadline: Deadline, tell: Tell) -> None:
    raise OddError(1, 2)


def tell_for(seconds: float, deadline: Deadline, tell: Tell) -> None:
    """Be slow, and say so."""
    over = time.monotonic() + seconds
    while time.monotonic() < over:
        tell("still there")
        time.sleep(0.05)


def save_when_asked(folder: Path, name: str, deadline: Deadline, tell: Tell) -> str:
    """Work until somebody asks for an end, or until the time is up."""
    with asked_to_stop() as asked:
        (folder / f"{name} begun").write_text(str(os.getpid()))
        while not asked() and not deadline.late:
            time.sleep(0.01)
    (folder / f"{name} saved").touch()
    if asked():
        raise KeyboardInterrupt
    return name


def main() -> None:
    """A driver of two processes that never come to their end."""
    from functools import partial

    folder = Path(sys.argv[1])
    wanted = [Job(name, partial(save_when_asked, folder, name), print) for name in ("one", "two")]
    with Driver(folder / "home", Crew("local", 2), Deadline()) as driver:
        driver.hand_out(lambda: wanted)


if __name__ == "__main__":
    main()
