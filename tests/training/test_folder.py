from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.training.tiny_runs import tiny
from unsmooth.errors import UnsmoothError
from unsmooth.training.folder import Lines, RunFolder, Watchmaker


def test_settings_come_back(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.create(tiny(remedies=("sharpen",)))
    assert folder.config() == tiny(remedies=("sharpen",))
    with pytest.raises(UnsmoothError, match="a new folder for the run but got one that holds a run"):
        folder.create(tiny())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "JSON in .*config.json"),
        ("[1]", "an object in .*config.json"),
        ('{"format": 2}', "a run of format 1 but got format 2 in .*the version of unsmooth that wrote it"),
        ("{}", "a run of format 1 but got format None"),
        ('{"format": 1}', "In .*config.json: Expected setting 'data'"),
        ('{"format": 1, "recipe": "a", "task": "b", "colour": 1}', "In .*config.json: Expected a known setting"),
        (
            '{"format": 1, "recipe": "a", "task": "b", "network": {"kind": "cnn"}}',
            "vit, encoder, decoder at network .* 'cnn'",
        ),
    ],
)
def test_settings_that_cannot_be_read(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(UnsmoothError, match=words) as caught:
        RunFolder(tmp_path).config()
    assert "\n" not in str(caught.value)


def test_no_run_there(tmp_path: Path) -> None:
    with pytest.raises(UnsmoothError, match=r"the folder of a run but got .*, without config\.json"):
        RunFolder(tmp_path).config()


def test_manifest_that_is_broken_is_none(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    assert folder.manifest() == {}
    for text in ("{", "[]"):
        (tmp_path / "manifest.json").write_text(text)
        assert folder.manifest() == {}
    folder.write_manifest({"state": "finished", "loss": float("nan")})
    assert folder.manifest() == {"format": 1, "state": "finished", "loss": None}
    assert not folder.finished  # no weights
    folder.final.mkdir()
    assert folder.finished


def test_lines_are_cut_back_to_a_step(tmp_path: Path) -> None:
    lines = Lines(tmp_path / "log.jsonl")
    lines.cut(3)  # nothing there yet
    assert lines.read() == []
    for step in range(5):
        lines.add(kind="train", step=step, loss=step / 3)
    with lines.path.open("ab") as file:
        file.write(b'{"kind": "train", "step": 5, "lo\xff')
    assert [line["step"] for line in lines.read()] == [0, 1, 2, 3, 4]
    lines.cut(2)
    lines.add(kind="train", step=3, loss=1.0)
    found = [json.loads(text) for text in lines.path.read_text().splitlines()]
    assert found == [{"kind": "train", "step": step, "loss": step / 3} for step in range(3)] + [
        {"kind": "train", "step": 3, "loss": 1.0}
    ]
    lines.cut(-1)
    assert lines.path.read_text() == ""


def test_a_line_for_which_there_is_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: Any, **more: Any) -> Any:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(UnsmoothError, match=r"room for a line in .*log.jsonl but got No space left on device"):
        Lines(tmp_path / "log.jsonl").add(step=1)


def test_sweeping_removes_drafts_and_nothing_else(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    drafts = [".0123456789abcdef.tmp", "checkpoints/.0123456789abcdef.tmp", "scans/step-00000000/.aaaaaaaaaaaaaaaa.tmp"]
    others = ["config.json", ".hidden.tmp", "checkpoints/step-00000001.pt", "checkpoints/.0123.tmp"]
    for name in drafts + others:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    (tmp_path / ".fedcba9876543210.old").mkdir()
    (tmp_path / ".fedcba9876543210.old" / "model.safetensors").write_text("x")
    folder.sweep()
    found = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert found == set(others)
    assert not (tmp_path / ".fedcba9876543210.old").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="no such locks")
def test_one_process_at_a_time(tmp_path: Path) -> None:
    # A lock belongs to its process, so another has to try.
    program = (
        "import pathlib, sys; from unsmooth.executing import held\n"
        "with held(pathlib.Path(sys.argv[1]), 'a run'): print('held', flush=True); sys.stdin.read()\n"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        told = rf"a run in .* that nobody is carrying out but got one under way, by process {other.pid} on "
        with pytest.raises(UnsmoothError, match=told):
            RunFolder(tmp_path).held().__enter__()
    finally:
        other.kill()
        other.wait()
    with RunFolder(tmp_path).held():
        pass


def test_the_clock_goes_on_from_before() -> None:
    assert 100.0 <= Watchmaker(100.0).seconds < 110.0
