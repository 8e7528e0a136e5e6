"""`unsmooth data` as a user types it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest

from unsmooth.cli.app import run
from unsmooth.training.data import cards


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    content = b"a text in place of a hundred million bytes\n" * 9
    card = cards.card("enwik8")
    assert isinstance(card, cards.TextCard)
    small = replace(
        card,
        bytes=len(content),
        content_md5=hashlib.md5(content).hexdigest(),
        url="http://127.0.0.1:9/enwik8.zip",
    )
    monkeypatch.setitem(cards.CARDS, "enwik8", small)  # type: ignore[arg-type]
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "enwik8"
    path.write_bytes(content)
    return path


def test_git_leaves_a_new_data_folder_alone_and_an_old_one_as_it_is(source: Path) -> None:
    assert run(["data", "get", "enwik8", "--from", str(source)]) == 0
    assert Path("data/.gitignore").read_text() == "*\n"
    Path("mine").mkdir()
    assert run(["data", "get", "enwik8", "--from", str(source), "--out", "mine"]) == 0
    assert not Path("mine/.gitignore").exists()


def test_get_then_ls(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["data", "get", "enwik8", "--from", str(source)]) == 0
    printed = capsys.readouterr()
    assert printed.out == "data/enwik8: enwik8 from enwik8, 387 bytes, 0.0 MB, checked.\n"
    assert printed.err == ""
    assert Path("data/enwik8/enwik8").read_bytes() == source.read_bytes()
    assert run(["data", "ls"]) == 0
    table = capsys.readouterr().out
    assert next(line.split()[:2] for line in table.splitlines() if "enwik8 " in line) == ["enwik8", "whole"]
    assert "unsmooth data get cifar10" in " ".join(table.split())
    assert run(["data", "ls", "--json"]) == 0
    found = {each["name"]: each["state"] for each in json.loads(capsys.readouterr().out)}
    assert found == {"cifar100": "absent", "cifar10": "absent", "superglue": "absent", "enwik8": "whole"}


def test_quiet_json_and_another_folder(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["data", "get", "enwik8", "--from", str(source), "--out", "other", "--quiet"]) == 0
    assert capsys.readouterr().out == ""
    assert run(["data", "get", "enwik8", "--from", str(source), "--out", "other", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["files"]["enwik8"]["bytes"] == 387
    assert Path("other/enwik8/enwik8").exists()
    assert not Path("data").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["get", "enwik9"], "Did you mean 'enwik8'?"),
        (["get", "enwik8"], "--from with a copy of enwik8.zip"),
        (["get", "enwik8", "--from", "./absent"], "no such file or folder"),
        (["get"], "Try --help"),
    ],
)
def test_one_line_for_what_is_wrong(
    source: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    assert run(["data", *words]) == 2
    printed = capsys.readouterr()
    assert said in printed.err
    assert printed.err.count("\n") == 1
    assert not Path("data/enwik8").exists()
