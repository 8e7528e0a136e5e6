"""A program in two processes, as torchrun starts them, without waiting for torchrun itself to load and to meet."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]

# Gloo's threads let go of a collective's tensors after they told that it is done. What is still sharded keeps them
# alive past the group's end, and one that meets an interpreter on its way out aborts (pytorch/pytorch#190489).
ENDING = """
import os, sys, torch.distributed
torch.distributed.destroy_process_group()
sys.stdout.flush()
sys.stderr.flush()
os._exit(0)
"""


def in_two_processes(program: str, folder: Path, words: Sequence[str] = (), timeout: float = 240) -> None:
    """Run `program`, which opens a process group, in `folder`, both processes to their end."""
    (folder / "program.py").write_text(program + ENDING)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    same = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    started = []
    for rank in ("0", "1"):
        own = {**os.environ, **same, "RANK": rank, "LOCAL_RANK": rank, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
        with (folder / f"said-{rank}.txt").open("w") as said:
            command = [sys.executable, "program.py", *words]
            started.append(subprocess.Popen(command, cwd=folder, env=own, stdout=said, stderr=said))
    end = time.monotonic() + timeout
    # One that fails leaves the other waiting.
    while None in (codes := [process.poll() for process in started]) and not any(codes) and time.monotonic() < end:
        time.sleep(0.05)
    for process in started:
        process.kill()
        process.wait()
    said_last = "\n".join((folder / f"said-{rank}.txt").read_text()[-3000:] for rank in range(2))
    assert codes == [0, 0], said_last
