"""Scans as Parquet: the frame comes back, and the file says what its columns mean."""

from __future__ import annotations

import json
import sys

import pandas
import pytest
import torch
from torch import nn

import unsmooth
from unsmooth import UnsmoothError
from unsmooth.cli.app import run

pyarrow_parquet = pytest.importorskip("pyarrow.parquet")


@pytest.fixture(scope="module")
def scan():
    torch.manual_seed(0)
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2)
    return unsmooth.scan(encoder, torch.randn(1, 6, 8), sites=("residual", "mlp"), progress=False)


def test_the_file_is_the_frame(scan, tmp_path):
    path = scan.to_parquet(tmp_path / "deep" / "mine.parquet")
    read = pyarrow_parquet.read_table(path)
    frame = scan.to_frame()
    assert read.column_names == list(frame.columns)
    assert str(read.schema.field("layer").type) == "int64"
    assert str(read.schema.field("mean").type) == "double"
    # One sequence has no spread: null to other readers, NaN again in pandas.
    assert read.column("std").null_count == len(frame)
    assert read.column("mean").to_pylist() == frame["mean"].tolist()
    pandas.testing.assert_frame_equal(pandas.read_parquet(path), frame)


def test_the_file_says_what_it_holds(scan, tmp_path):
    metadata = pyarrow_parquet.read_schema(scan.to_parquet(tmp_path / "mine.parquet")).metadata
    meaning = json.loads(metadata[b"unsmooth"])
    assert meaning["definitions"]["mean_cosine"].startswith("mean of x_i·x_j")
    assert meaning["manifest"]["model"]["weights_sha256"] == scan.manifest["model"]["weights_sha256"]
    assert meaning["sentence"] == scan.sentence


def test_it_lies_beside_the_other_files_where_asked_for(scan, tmp_path):
    scan.save(tmp_path / "without")
    scan.save(tmp_path / "with", parquet=True)
    names = {place: {path.name for path in (tmp_path / place).iterdir()} for place in ("with", "without")}
    assert names["with"] - names["without"] == {"scan.parquet"}
    assert unsmooth.load_scan(tmp_path / "with").to_frame().shape == scan.to_frame().shape


def test_the_command_writes_it_for_every_model(bert_folder, tmp_path):
    page = tmp_path / "page.txt"
    page.write_text("the cat sat on a mat\n\none dog run past")
    out = tmp_path / "out"
    words = ["scan", str(bert_folder), str(page), "--with", "sharpen", "--out", str(out), "--parquet", "-q"]
    assert run(words) == 0
    assert {path.parent.name for path in out.rglob("scan.parquet")} == {
        path.parent.name for path in out.rglob("scan.csv")
    }
    assert len(list(out.rglob("scan.parquet"))) == 2


@pytest.fixture
def no_pyarrow(monkeypatch):
    for name in ("pyarrow", "pyarrow.parquet"):
        monkeypatch.setitem(sys.modules, name, None)


def test_without_pyarrow_nothing_is_written(scan, tmp_path, no_pyarrow):
    with pytest.raises(UnsmoothError, match=r'pip install "unsmooth\[parquet\]"'):
        scan.to_parquet(tmp_path / "mine.parquet")
    with pytest.raises(UnsmoothError, match="the package pyarrow, which writes Parquet files"):
        scan.save(tmp_path / "folder", parquet=True)
    assert list(tmp_path.iterdir()) == []


def test_the_command_says_so_before_it_loads_a_model(tmp_path, no_pyarrow, capsys):
    assert run(["scan", "./no-such-model", "a text", "--out", str(tmp_path / "out"), "--parquet"]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert "unsmooth[parquet]" in line
    assert list(tmp_path.iterdir()) == []


def test_it_needs_a_place(capsys):
    assert run(["scan", "./no-such-model", "a text", "--parquet"]) == 2
    assert "--out DIR beside it" in capsys.readouterr().err
