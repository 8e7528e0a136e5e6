"""Saved scans come back as they were, and nothing is written by halves."""

from __future__ import annotations

import json
import math
import os

import pandas
import pytest
import torch
from torch import nn

import unsmooth
from unsmooth import UnsmoothError
from unsmooth.files import write_whole
from unsmooth.scanning import Row


@pytest.fixture(scope="module")
def scan():
    torch.manual_seed(0)
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2)
    return unsmooth.scan(encoder, torch.randn(4, 6, 8), baseline=True, progress=False)


def test_a_scan_comes_back_as_it_was(scan, tmp_path):
    scan.save(tmp_path / "deep" / "folder")
    again = unsmooth.load_scan(tmp_path / "deep" / "folder")
    assert again == scan
    assert sorted(path.name for path in (tmp_path / "deep" / "folder").iterdir()) == [
        "manifest.json",
        "scan.csv",
        "scan.json",
    ]


def test_the_csv_is_the_frame(scan, tmp_path):
    scan.save(tmp_path)
    pandas.testing.assert_frame_equal(pandas.read_csv(tmp_path / "scan.csv"), scan.to_frame())


def test_nan_is_null_in_json_and_nan_again_after(tmp_path):
    one = unsmooth.scan(nn.Sequential(nn.Identity()), torch.randn(1, 4, 8), blocks="*", progress=False)
    assert math.isnan(one.rows[0].std)
    one.save(tmp_path)
    content = (tmp_path / "scan.json").read_text(encoding="utf-8")
    json.loads(content, parse_constant=lambda name: pytest.fail(f"{name} in JSON"))
    row = unsmooth.load_scan(tmp_path).rows[0]
    assert isinstance(row, Row)
    assert math.isnan(row.ci_low)


def test_the_manifest_says_what_made_the_numbers(scan):
    manifest = scan.manifest
    assert len(manifest["model"]["weights_sha256"]) == 64
    assert len(manifest["data"]["sha256"]) == 64
    assert set(manifest["definitions"]["metrics"]) == set(scan.metrics)
    assert {"python", "torch", "unsmooth"} <= set(manifest["versions"])
    assert manifest["model"]["dtype"] == ["float32"]
    assert manifest["model"]["device"].startswith("cpu")
    assert (manifest["seed"], manifest["processes"]) == (0, 1)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_an_unwritable_folder_is_refused(scan, tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(UnsmoothError, match="a writable folder"):
        scan.save(tmp_path / "inside")


def test_a_file_in_the_way_is_refused(scan, tmp_path):
    (tmp_path / "taken").write_text("mine")
    with pytest.raises(UnsmoothError, match="a writable folder"):
        scan.save(tmp_path / "taken")
    assert (tmp_path / "taken").read_text() == "mine"


def test_a_failed_write_leaves_the_old_file(tmp_path):
    target = tmp_path / "scan.json"
    target.write_text("old")
    with pytest.raises(TypeError):
        write_whole(target, 3)  # type: ignore[arg-type]
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "a folder that Scan.save wrote"), ("{", "a whole scan.json"), ('{"format": 99}', "scan format 1")],
)
def test_folders_that_hold_no_scan(tmp_path, content, message):
    if content is not None:
        (tmp_path / "scan.json").write_text(content)
    with pytest.raises(UnsmoothError, match=message):
        unsmooth.load_scan(tmp_path)


def test_the_first_metric_is_drawn_unless_another_is_named():
    one = unsmooth.scan(
        nn.Sequential(nn.Identity()), torch.randn(2, 4, 8), blocks="*", metrics=["stable_rank"], progress=False
    )
    assert "stable_rank" in json.dumps(one.plot().to_dict())
    assert one.curve() == one.rows
    assert "stable_rank" in one._repr_html_()


def test_without_a_fingerprint_no_weight_is_hashed_and_all_else_is_the_same(tmp_path, monkeypatch):
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2)
    tokens = torch.randn(4, 6, 8)
    whole = unsmooth.scan(encoder, tokens, progress=False)
    monkeypatch.setattr("unsmooth.scanning.one_pass.hashing", None)
    found = unsmooth.scan(encoder, tokens, fingerprint=False, progress=False)
    assert found.rows == whole.rows
    assert found.manifest["model"] == {**whole.manifest["model"], "weights_sha256": None}
    found.save(tmp_path)
    assert unsmooth.load_scan(tmp_path).manifest["model"]["weights_sha256"] is None
    with pytest.raises(TypeError):
        unsmooth.scan(encoder, tokens, progress=False)
