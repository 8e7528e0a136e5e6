"""Explanations as frames and on disk: what is read is what was written, and broken files say so in one line."""

from __future__ import annotations

import json
import math
from dataclasses import fields, replace
from pathlib import Path

import pandas
import pytest
import torch

from tests.explaining.seeing import encoder, streams
from unsmooth import UnsmoothError, explain, load_explanation
from unsmooth.explaining import TIERS, Breakdown, Explanation, Gains, Growth, HeadFinding, LayerFinding
from unsmooth.explaining.files import to_json

NAN = math.nan
FILES = {"explanation.json", "layers.csv", "heads.csv", "manifest.json"}


@pytest.fixture(scope="module")
def found() -> Explanation:
    return explain(encoder(), streams(), progress=False, name="tiny")


@pytest.fixture(scope="module")
def of_weights() -> Explanation:
    return explain(encoder(), progress=False)


def same(one: object, other: object) -> bool:
    """Equal, NaN to NaN."""
    first, second = (repr(vars(each) if isinstance(each, Explanation) else each) for each in (one, other))
    return first == second


def test_shown_in_a_few_words(found: Explanation) -> None:
    assert repr(found) == f"Explanation of 'tiny': {len(found.layers)} layers, {len(found.heads)} heads, " + (
        f"{len(found.notes)} notes\n{found.sentence}"
    )


def test_round_trip(found: Explanation, tmp_path: Path) -> None:
    assert found.save(tmp_path / "new" / "folder") == tmp_path / "new" / "folder"
    assert {path.name for path in (tmp_path / "new" / "folder").iterdir()} == FILES
    for place in (tmp_path / "new" / "folder", tmp_path / "new" / "folder" / "explanation.json"):
        assert same(load_explanation(place), found)


def test_round_trip_without_data(of_weights: Explanation, tmp_path: Path) -> None:
    read = load_explanation(of_weights.save(tmp_path))
    assert same(read, of_weights)
    assert read.growth is None
    assert read.skills == ()
    assert read.layers[0].gains is None
    assert read.heads[0].second_eigenvalue is None


def test_round_trip_of_numbers_that_are_none(found: Explanation, tmp_path: Path) -> None:
    layer = replace(
        found.layers[0],
        mean_modulus=NAN,
        margin=NAN,
        eigenvalues=(complex(NAN, 1.0), 2 - 3j),
        gains=Gains(NAN, 1.0, NAN, 2.0, None, 3.0),
        breakdown=Breakdown(NAN, 0.0, 0.1, 0.2),
        flip_scale=None,
    )
    head = replace(
        found.heads[0], feature_eigenvalue=complex(1.0, NAN), token_eigenvalue=None, margin=NAN, condition=NAN
    )
    broken = replace(found, layers=(layer,), heads=(head,), growth=Growth(NAN, 0.5, 3))
    read = load_explanation(broken.save(tmp_path))
    assert same(read.layers, broken.layers)
    assert same(read.heads, broken.heads)
    assert same(read.growth, broken.growth)
    assert read.growth is not None
    assert math.isnan(read.growth.margin)


def test_json_has_only_what_json_has(found: Explanation) -> None:
    broken = replace(found, layers=(replace(found.layers[0], margin=NAN, mean_modulus=math.inf),))
    text = json.dumps(to_json(broken), allow_nan=False)
    content = json.loads(text)
    assert content["format"] == 3
    assert content["layers"][0]["margin"] is None
    pair = content["heads"][0]["feature_eigenvalue"]
    assert complex(*pair) == found.heads[0].feature_eigenvalue


def test_frame_of_layers(found: Explanation) -> None:
    frame = found.to_frame()
    assert frame["layer"].tolist() == [1, 2]
    plain = {item.name for item in fields(LayerFinding)} - {"eigenvalues", "gains", "breakdown", "predicted", "stack"}
    nested = {f"gains_{item.name}" for item in fields(Gains)} | {f"breakdown_{item.name}" for item in fields(Breakdown)}
    assert set(frame.columns) == plain | nested | {"measured"} | {f"predicted_{name}" for name in TIERS}
    row = frame.iloc[1]
    one = found.layers[1]
    assert row["measured"] == one.measured
    assert one.gains is not None
    assert row["gains_rest_to_mean"] == one.gains.rest_to_mean
    assert row["predicted_T2"] == one.predicted["T2"]


def test_frame_of_heads(found: Explanation) -> None:
    frame = found.to_frame("heads")
    assert list(frame.columns) == [item.name for item in fields(HeadFinding) if item.name != "stack"]
    assert list(zip(frame["layer"], frame["head"], strict=True)) == [(1, 0), (1, 1), (2, 0), (2, 1)]
    assert frame["feature_eigenvalue"].tolist() == [head.feature_eigenvalue for head in found.heads]


def test_frames_without_data_have_the_same_columns(of_weights: Explanation, found: Explanation) -> None:
    without_tiers = [column for column in found.to_frame().columns if not column.startswith("predicted_")]
    assert list(of_weights.to_frame().columns) == without_tiers
    assert of_weights.to_frame()["gains_mean"].isna().all()
    assert replace(of_weights, heads=()).to_frame("heads").empty


def test_an_unknown_frame_is_an_error(found: Explanation) -> None:
    with pytest.raises(UnsmoothError, match="'layers' or 'heads'"):
        found.to_frame("rules")  # type: ignore[arg-type]


def test_csv_are_the_frames(found: Explanation, tmp_path: Path) -> None:
    found.save(tmp_path)
    layers = pandas.read_csv(tmp_path / "layers.csv")
    assert layers["measured"].tolist() == pytest.approx([one.measured for one in found.layers])
    assert len(pandas.read_csv(tmp_path / "heads.csv")) == 4
    assert json.loads((tmp_path / "manifest.json").read_text(encoding="utf-8"))["data"]["sequences"] == 3


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b'"text"',
        b"\xff\xfe\x00broken",
        b'{"format": 3}',
        b'{"format": 99}',
        b'{"format": 3, "name": "x", "layers": [{}], "heads": []}',
    ],
)
def test_broken_files_are_told_in_one_line(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "explanation.json").write_bytes(content)
    with pytest.raises(UnsmoothError) as caught:
        load_explanation(tmp_path)
    assert "\n" not in str(caught.value)
    assert "Try" in str(caught.value)


@pytest.mark.parametrize("change", ["pair", "missing", "unknown", "kind"])
def test_files_of_another_shape_are_told_in_one_line(change: str, found: Explanation, tmp_path: Path) -> None:
    found.save(tmp_path)
    path = tmp_path / "explanation.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    if change == "pair":
        content["layers"][0]["eigenvalues"][0] = [1.0]
    elif change == "missing":
        del content["heads"][0]["margin"]
    elif change == "unknown":
        content["skills"][0]["luck"] = 1.0
    else:
        content["layers"] = 3
    path.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(UnsmoothError, match="a whole explanation") as caught:
        load_explanation(tmp_path)
    assert "\n" not in str(caught.value)


def test_missing_files(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "nothing", tmp_path / "nothing.json"):
        with pytest.raises(UnsmoothError, match="a folder that Explanation"):
            load_explanation(place)


def test_a_place_that_cannot_be_written(found: Explanation, tmp_path: Path) -> None:
    taken = tmp_path / "file"
    taken.write_text("here", encoding="utf-8")
    with pytest.raises(UnsmoothError, match="a writable folder"):
        found.save(taken)
    assert taken.read_text(encoding="utf-8") == "here"


def test_the_manifest_says_what_was_explained(found: Explanation, of_weights: Explanation) -> None:
    assert found.name == "tiny"
    assert found.manifest["model"]["class"] == "TransformerEncoder"
    assert found.manifest["data"]["tokens"] == 18
    assert of_weights.manifest["data"] is None
    assert set(found.manifest["definitions"]["verdicts"]) == {"smoothing", "sharpening", "preserving", "undecided"}
    other = explain(encoder(), streams(seed=1), progress=False, jacobian=False)
    assert other.manifest["data"] != found.manifest["data"]
    with torch.no_grad():
        changed = encoder()
        changed.layers[0].linear1.weight.add_(1.0)
    assert explain(changed, progress=False).manifest["model"] != of_weights.manifest["model"]
