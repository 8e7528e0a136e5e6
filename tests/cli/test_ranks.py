"""How one of several processes leaves."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = """
import atexit, sys
from unsmooth.cli import app


class Undone:
    def __del__(self, write=sys.__stderr__.write):
        write("undone ")


sys.modules["kept alive"] = Undone()
run = app.run


def run_and_register(words):
    atexit.register(lambda: print("exit function ran"))
    return run(words)


app.run = run_and_register
app.main(sys.argv[1:])
"""


@pytest.mark.parametrize(("processes", "undone"), [("1", True), ("2", False)])
@pytest.mark.parametrize(("word", "code"), [("--version", 0), ("no-such-verb", 2)])
def test_exit_functions_run_and_the_interpreter_is_not_undone_beside_others(
    processes: str, undone: bool, word: str, code: int
):
    environment = {**os.environ, "WORLD_SIZE": processes}
    command = [sys.executable, "-c", PROGRAM, word]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == code
    assert done.stdout.endswith("exit function ran\n")
    assert ("undone" in done.stderr) == undone
