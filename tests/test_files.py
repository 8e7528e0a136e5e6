"""Files of strangers are read within bounds, and drafts of killed processes do not stay."""

from __future__ import annotations

import gzip
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from unsmooth.errors import UnsmoothError
from unsmooth.files import LARGEST, below, open_file, parse_json, read_json, whole_folder


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[" * 100_000, "at most 64 levels"),
        ('{"a":' * 65 + "1" + "}" * 65, "at most 64 levels"),
        ("[" + "0," * (1 << 20) + "0]", "at most 1,048,576 values"),
        ("NaN", "NaN, which is no JSON"),
        ("[Infinity]", "Infinity, which is no JSON"),
        ("1e999", "1e999, which is no float"),
        ("1" * 20, "a whole number of 20 digits"),
        ('"\\ud800"', "surrogates not allowed"),
        ("{", "Expecting property name"),
    ],
)
def test_json_is_bounded(text: str, words: str) -> None:
    with pytest.raises(UnsmoothError, match=words) as found:
        parse_json(text, "a file")
    assert "\n" not in str(found.value)


def test_what_is_within_bounds_is_read_as_it_is() -> None:
    text = '{"a": [1, -2.5, null, true, "\\ud83d\\ude00"], "b": ' + "[" * 62 + "]" * 62 + "}"
    assert parse_json(text, "a file")["a"] == [1, -2.5, None, True, "😀"]
    assert parse_json("[Infinity]", "settings", constants=True) == [float("inf")]


def test_only_regular_files_are_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zero").symlink_to("/dev/zero")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "folder").mkdir()
    for name, words in (("pipe", "a pipe"), ("zero", "a device"), ("folder", "a folder"), ("loop", "readable")):
        with pytest.raises(UnsmoothError, match=words):
            open_file(tmp_path / name)
    for name in ("missing", "folder/missing"):
        with pytest.raises(FileNotFoundError):
            open_file(tmp_path / name)
    # As the cache of a hub has them: a link to a regular file elsewhere.
    (tmp_path / "blob").write_text("{}")
    (tmp_path / "folder" / "config.json").symlink_to("../blob")
    assert read_json(tmp_path / "folder" / "config.json") == {}
    with pytest.raises(FileNotFoundError):
        open_file(tmp_path / "blob" / "inside")


def test_a_large_file_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "a.json").open("wb") as file:
        file.truncate(LARGEST + 1)
    with pytest.raises(UnsmoothError, match="at most 33,554,432 bytes"):
        read_json(tmp_path / "a.json")


def test_what_is_packed_is_bounded_once_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "a.json.gz"
    path.write_bytes(gzip.compress(b'{"a": 1}'))
    assert read_json(path) == {"a": 1}
    path.write_bytes(gzip.compress(bytes(LARGEST + 1)))
    with pytest.raises(UnsmoothError, match="at most 33,554,432 bytes"):
        read_json(path)
    for broken in (b"{}", gzip.compress(b"{}")[:-9], gzip.compress(b"{}" * 99)[:20] + b"x" * 20):
        path.write_bytes(broken)
        with pytest.raises(UnsmoothError, match="a whole gzip file"):
            read_json(path)


@pytest.mark.parametrize("name", ["/etc/passwd", "../a", "a/../../b", "", "a\x00b", "..\\a", 7, None, "x" * 300])
def test_names_stay_below_their_folder(name: object) -> None:
    with pytest.raises(UnsmoothError, match="the name of a file in 'run'"):
        below(Path("run"), name)


KILLED = """
import sys, time
from pathlib import Path
from unsmooth.files import whole_folder
with whole_folder(Path(sys.argv[1])) as draft:
    (draft / "half").write_text("half")
    print("begun", flush=True)
    time.sleep(600)
"""


def test_drafts_of_killed_processes_are_removed_and_those_of_living_ones_are_not(tmp_path: Path) -> None:
    processes = [
        subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path / name)], stdout=subprocess.PIPE, text=True)
        for name in ("killed", "living")
    ]
    try:
        for one in processes:
            assert one.stdout is not None
            assert one.stdout.readline() == "begun\n"
        assert len([path for path in tmp_path.iterdir() if path.suffix == ".tmp"]) == 2
        processes[0].send_signal(signal.SIGKILL)
        processes[0].wait()
        with whole_folder(tmp_path / "killed") as draft:
            (draft / "whole").write_text("whole")
        assert [path.name for path in (tmp_path / "killed").iterdir()] == ["whole"]
        (left,) = [path for path in tmp_path.iterdir() if path.suffix == ".tmp"]
        assert (left / "new" / "half").read_text() == "half"
    finally:
        for one in processes:
            one.kill()
            one.communicate()
