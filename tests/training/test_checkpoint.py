from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from unsmooth.errors import UnsmoothError
from unsmooth.training import checkpoint
from unsmooth.training.checkpoint import Checkpoint, Checkpoints, digest_of, size_of


def state(number: float) -> dict[str, Any]:
    return {"state": {"a": torch.full((300,), number)}, "about": {"seconds": number, "said": {"loss": 1.5}}}


def saved(folder: Path, *steps: int, keep: int = 2) -> Checkpoints:
    found = Checkpoints(folder, keep)
    for step in steps:
        found.save(step, state(step))
    return found


def content(found: Checkpoint | None) -> float:
    assert found is not None
    value = found.read()["state"]["a"]
    assert (value == value[0]).all()
    return float(value[0])


def test_what_was_saved_is_read_and_the_oldest_go(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path / "new", 1, 2, 30)
    assert checkpoints.names() == ["step-00000002.pt", "step-00000030.pt"]
    found = checkpoints.latest()
    assert found is not None
    assert (found.step, content(found), found.read()["about"]) == (30, 30.0, state(30)["about"])
    assert checkpoints.passed_over == []
    known = json.loads((tmp_path / "new" / "index.json").read_text())
    whole = found.path.read_bytes()
    assert known["step-00000030.pt"] == {"bytes": len(whole), "sha256": hashlib.sha256(whole).hexdigest()}
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["index.json", *checkpoints.names()]


def test_none_yet(tmp_path: Path) -> None:
    assert Checkpoints(tmp_path / "nowhere").latest() is None
    assert not (tmp_path / "nowhere").exists()


def test_steps_are_sorted_as_numbers(tmp_path: Path) -> None:
    found = saved(tmp_path, 99_999_999, 100_000_000).latest()
    assert found is not None
    assert found.step == 100_000_000


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


@pytest.mark.parametrize("harm", [truncate, flip, lambda path: path.write_bytes(b"")])
@pytest.mark.parametrize("index", ["kept", "lost", "broken", "a list"])
def test_a_garbled_one_is_passed_over(tmp_path: Path, harm: Callable[[Path], object], index: str) -> None:
    checkpoints = saved(tmp_path, 1, 2)
    if index != "kept":
        (tmp_path / "index.json").unlink()
    if index in ("broken", "a list"):
        (tmp_path / "index.json").write_text("{" if index == "broken" else "[]")
    harm(tmp_path / "step-00000002.pt")
    found = checkpoints.latest()
    assert content(found) == 1.0
    assert checkpoints.passed_over == ["step-00000002.pt"]
    checkpoints.save(2, state(7))  # the run goes on and comes there again
    assert content(checkpoints.latest()) == 7.0
    assert checkpoints.passed_over == []


def test_one_that_was_blown_up_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints = saved(tmp_path, 1, 2)
    os.truncate(tmp_path / "step-00000002.pt", 1 << 40)  # a hole, which takes no room on the disk
    read: list[str] = []
    monkeypatch.setattr(checkpoint, "digest_of", lambda path: read.append(path.name) or digest_of(path))
    assert content(checkpoints.latest()) == 1.0
    assert read == ["step-00000001.pt"]


def test_all_garbled(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, 1, 2)
    truncate(tmp_path / "step-00000001.pt")
    truncate(tmp_path / "step-00000002.pt")
    assert checkpoints.latest() is None
    assert len(checkpoints.passed_over) == 2


class FullDisk:
    """Lets so many bytes through."""

    def __init__(self, file: Any, room: int) -> None:
        self.file, self.room = file, room

    def write(self, data: Any) -> int:
        self.room -= len(data)
        if self.room < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return int(self.file.write(data))


@pytest.mark.parametrize("room", [0, 200, 1500])
def test_a_disk_that_fills_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int) -> None:
    checkpoints = saved(tmp_path, 1, 2)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    real = checkpoint._Hashed
    monkeypatch.setattr(checkpoint, "_Hashed", lambda file: real(FullDisk(file, room)))  # type: ignore[arg-type]
    with pytest.raises(UnsmoothError) as caught:
        checkpoints.save(3, state(3))
    assert str(caught.value) == (
        f"Expected room to save step 3 in {tmp_path} but got No space left on device. "
        "Try freeing space, then `unsmooth train --resume` or the arena's command again; earlier checkpoints are whole."
    )
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    monkeypatch.undo()
    assert content(checkpoints.latest()) == 2.0


@pytest.mark.parametrize("failing", ["fsync", "replace"])
def test_a_disk_that_fails_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str) -> None:
    checkpoints = saved(tmp_path, 1, 2)

    def fail(*args: Any) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, failing, fail)
    with pytest.raises(UnsmoothError, match=r"room to save step 3 in .* but got Input/output error|another folder"):
        checkpoints.save(3, state(3))
    monkeypatch.undo()
    assert content(checkpoints.latest()) == 2.0
    assert not list(tmp_path.glob(".*"))


def test_too_little_room_is_known_beforehand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints = saved(tmp_path, 1)
    big = {"a": torch.empty(2**22, device="meta")}
    monkeypatch.setattr(shutil, "disk_usage", lambda _: type("Usage", (), {"free": 2**20})())
    with pytest.raises(UnsmoothError, match=r"\(1 MiB free, 16 needed\)\. Try freeing 16 MiB, then"):
        checkpoints.save(2, big)


def test_killed_between_the_index_and_the_move(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Killed(BaseException):
        pass

    real = os.replace

    def kill(source: Any, target: Any) -> None:
        if str(target).endswith(".pt"):
            raise Killed
        real(source, target)

    checkpoints = saved(tmp_path, 1, 2)
    monkeypatch.setattr(os, "replace", kill)
    with pytest.raises(Killed):
        checkpoints.save(3, state(3))
    monkeypatch.undo()
    assert content(checkpoints.latest()) == 2.0
    assert checkpoints.passed_over == []


def test_every_file_is_synced_before_it_is_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    fsync, replace = os.fsync, os.replace

    def note_sync(number: int) -> None:
        events.append(f"sync {Path(os.readlink(f'/proc/self/fd/{number}')).suffix or 'folder'}")
        fsync(number)

    def note_move(source: Any, target: Any) -> None:
        events.append(f"move {Path(target).suffix}")
        replace(source, target)

    if not Path("/proc/self/fd").exists():
        pytest.skip("needs /proc")
    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(os, "replace", note_move)
    Checkpoints(tmp_path / "folder").save(1, state(1))
    assert events == ["sync .tmp", "move .json", "sync .json", "move .pt", "sync folder"]


def test_nothing_is_held_in_memory(tmp_path: Path) -> None:
    import tracemalloc

    tensors = {"a": torch.zeros(2**21)}
    tracemalloc.start()
    Checkpoints(tmp_path).save(1, tensors)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < size_of(tensors) / 8
