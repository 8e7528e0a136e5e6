"""Single pictures for docs."""

from __future__ import annotations

import pytest

from tests.report.training.fake_runs import LAYERS
from unsmooth.errors import UnsmoothError
from unsmooth.report.charts import chart_svg
from unsmooth.report.training import figure
from unsmooth.training import find_runs, read_run

pytest.importorskip("altair", reason="the report extra is not installed")
pytest.importorskip("vl_convert", reason="the report extra is not installed")


def test_map_of_similarity_has_a_cell_for_each_layer_and_measurement(run_folders):
    spec = figure(read_run(run_folders["one"]), "similarity", "token_similarity").to_dict()
    cells = spec["data"]["values"]
    assert len(cells) == (LAYERS + 1) * 3
    assert "token_similarity" in spec["title"]["text"]
    assert spec["layer"][0]["encoding"]["color"]["scale"]["domain"] == [0.0, 1.0]


def test_variants_stand_side_by_side_or_share_a_picture(run_folders):
    runs = [read_run(path) for path in find_runs(run_folders["sweep"])]
    assert [one["title"]["text"] for one in figure(runs, "similarity").to_dict()["concat"]] == ["no remedy", "sharpen"]
    lines = figure(runs, "loss").to_dict()["layer"]
    assert {row["line"] for row in lines[1]["data"]["values"]} == {"no remedy", "sharpen"}


@pytest.mark.parametrize("name", ["accuracy", "learning rate", "asymmetry of H", "quantiles", "moments"])
def test_pictures_are_found_by_what_they_show(run_folders, name):
    assert chart_svg(figure(read_run(run_folders["one"]), name)).startswith("<svg")


def test_negative_share_has_two_hues_around_a_half(run_folders):
    spec = figure(read_run(run_folders["one"]), "spectrum", "share of negative real parts").to_dict()
    scale = spec["layer"][0]["encoding"]["color"]["scale"]
    assert (scale["range"], scale["domain"]) == ("diverging", [0.0, 1.0])  # the widest share is 0.85
    assert len(spec["config"]["range"]["diverging"]) % 2 == 1


def test_unknown_picture_is_refused_with_those_there_are(run_folders):
    run = read_run(run_folders["one"])
    with pytest.raises(UnsmoothError, match="accuracy"):
        figure(run, "acuracy")
    with pytest.raises(UnsmoothError, match="mean_cosine"):
        figure(run, "similarity", "mean_cosin")


def test_training_and_evaluation_have_bands_of_their_own(run_folders):
    spec = figure([read_run(path) for path in find_runs(run_folders["sweep"])], "loss").to_dict()
    band = next(layer for layer in spec["layer"] if layer["mark"]["type"] == "area")
    assert band["encoding"]["detail"]["field"] == "kind"
    assert {row["kind"] for row in band["data"]["values"]} == {"training", "evaluation"}
