"""The Why part as data, as figures and as text of the page."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from tests.report.fake_explanations import (
    DEPTH,
    HEADS,
    KNOWS,
    WIDTH,
    full_explanation,
    head_finding,
    hostile_explanation,
    layer_finding,
    weights_alone,
)
from tests.report.fakes import HOSTILE, NAN, full_scan, plain_scan
from tests.report.test_html import block, without_runtime
from unsmooth.errors import UnsmoothError
from unsmooth.explaining.result import Explanation, Growth
from unsmooth.report import report_html, save_why_figures, why_figures
from unsmooth.report.charts import chart_svg
from unsmooth.report.why.rows import disc_rows, frame_rows, prediction_rows, smallest_token_eigenvalue, thinned
from unsmooth.report.why.words import stack_in_words

altair = pytest.importorskip("altair", reason="the report extra is not installed")
pytest.importorskip("vl_convert", reason="the report extra is not installed")

ABSENT = (
    "No prediction was compared with a measured change: that needs data.",
    "No tier was scored: that needs data.",
    "The change was not broken down by cause: that needs data.",
    "No attention maps were taken, so nothing is known of their spectra.",
    "No Jacobian was taken: that needs data.",
    "No escalation rate was measured: that needs data.",
    "Growth over the stack was not measured: that needs data.",
)


def table(spec: dict, layer: str) -> list[dict]:
    """The rows that one layer of a chart draws."""
    found = next(one for one in spec["layer"] if one["name"] == layer)
    return found["data"]["values"] if "values" in found["data"] else spec["datasets"][found["data"]["name"]]


@pytest.mark.parametrize("smallest", [-0.6, -0.2, 0.0, 0.5])
def test_disc_is_where_the_token_mean_stops_dominating(smallest: float) -> None:
    edge = np.array([complex(row["re"], row["im"]) for row in disc_rows(smallest, "")])
    token_eigenvalues = np.linspace(smallest, 1.0, 301)
    centre = edge.mean()
    for factor, dominates in ((0.97, False), (1.03, True)):
        values = centre + factor * (edge - centre)
        growth = np.abs(1 + token_eigenvalues[:, None] * values[None, :])
        assert ((growth[:-1].max(axis=0) < growth[-1]) == dominates).all()


def test_frame_is_a_square_around_everything() -> None:
    points = [{"re": -3.0, "im": 0.25}, {"re": 5.0, "im": -1.0}]
    low, high = frame_rows(points)
    assert high["re"] - low["re"] == pytest.approx(high["im"] - low["im"])
    assert all(low[axis] < point[axis] < high[axis] for point in points for axis in ("re", "im"))


def test_thinned_cloud_keeps_its_outline_and_the_fastest_mode() -> None:
    crowd = [0.001 * step * 1j for step in range(1000)]
    far = [-4 + 0j, -1 - 3j, 2.5 + 0j]
    kept = thinned(crowd + far, 20)
    assert len(kept) == len(set(kept)) == 20
    assert set(far) <= set(kept)
    assert kept[0] == 2.5  # |1 + 2.5| is the largest
    assert thinned(far, None) == thinned(far, 3) == far


def test_smallest_token_eigenvalue_is_real_and_not_the_mean() -> None:
    heads = [head_finding(1, 0)]
    given = [replace(heads[0], head=index, token_eigenvalue=value) for index, value in enumerate((1, 0.3, -0.4, -0.9j))]
    assert smallest_token_eigenvalue(given) == (-0.4, 2)
    assert smallest_token_eigenvalue([replace(heads[0], token_eigenvalue=value) for value in (None, 1 + 0j)]) is None


def test_directions_are_compared_by_sign() -> None:
    rising = layer_finding(1)  # logit t_sim rises by 0.4
    cases = {0.2: "foretold", -0.2: "missed", 0.0: "missed"}
    for predicted, word in cases.items():
        (found,) = prediction_rows([replace(rising, predicted={"T1": predicted})], "T1")
        assert found["direction"] == f"direction {word}"
        assert found["measured"] == pytest.approx(0.4)
    assert prediction_rows([replace(rising, predicted={"T1": NAN}), replace(rising, predicted={})], "T1") == []


def test_every_picture_is_there_and_valid_vega_lite() -> None:
    figures = why_figures(full_explanation())
    assert sorted(figures) == sorted(
        [
            *(f"eigenvalues-layer-{layer}" for layer in range(1, DEPTH + 1)),
            "verdicts",
            *("prediction-t2", "prediction-t1"),
            "breakdown",
            *(f"attention-{name}" for name in ("second_eigenvalue", "quotient_norm", "dobrushin", "entropy")),
            "gains",
            "escalation",
        ]
    )
    for chart in figures.values():
        altair.LayerChart.from_dict(chart.to_dict())


def test_cloud_has_equal_units_both_discs_and_the_fastest_mode() -> None:
    spec = why_figures(full_explanation())["eigenvalues-layer-3"].to_dict()
    assert spec["width"] == spec["height"]
    assert len(table(spec, "cloud")) == WIDTH
    assert table(spec, "top") == [{"re": 3.0, "im": 0.0}]
    assert min(row["re"] for row in table(spec, "averaging")) == -2
    # The others are cut at the frame, 0.56 of the cloud's width (from −2 to 3) left of its middle at 0.5.
    assert min(row["re"] for row in table(spec, "smallest")) == pytest.approx(0.5 - 0.56 * 5)
    # Verdicts run by (layer + head) % 4, so head 2 of layer 3 sharpens, with μ = −0.4: the radius is 1/(1 − 0.4).
    assert max(row["im"] for row in table(spec, "smallest")) == pytest.approx(1 / 0.6, rel=1e-3)
    assert max(row["im"] for row in table(spec, "measured")) == 1.25  # the growth of the fastest other mode
    assert "m = −0.4, from the dominating mode of head 2." in " ".join(spec["title"]["subtitle"])


def test_norm_after_the_addition_has_no_disc_of_a_head() -> None:
    whole = full_explanation()
    after = replace(whole, layers=(replace(whole.layers[2], place="post"),))
    spec = why_figures(after)["eigenvalues-layer-3"].to_dict()
    assert "smallest" not in [layer["name"] for layer in spec["layer"]]
    assert "with the norm after the addition folded in" in " ".join(spec["title"]["subtitle"])


def test_bars_sum_to_the_measured_change() -> None:
    spec = why_figures(full_explanation())["breakdown"].to_dict()
    sums = dict.fromkeys(range(1, DEPTH + 1), 0.0)
    for row in table(spec, "shares"):
        sums[row["layer"]] += row["change"]
    marks = {row["layer"]: row["change"] for row in table(spec, "measured")}
    assert sums == pytest.approx(marks)
    assert marks[1] == pytest.approx(0.1)


def test_heads_stand_with_their_mean_and_the_random_reference() -> None:
    spec = why_figures(full_explanation())["attention-second_eigenvalue"].to_dict()
    assert len(table(spec, "heads")) == DEPTH * HEADS
    lines = {(row["line"], row["layer"]): row["value"] for row in table(spec, "lines")}
    assert lines["mean of the heads", 1] == pytest.approx(0.35)  # of 0.2, 0.3, 0.4, 0.5
    assert lines["95 % of random maps: Dirichlet rows", DEPTH] == 0.15
    assert lines["95 % of random maps: softmax of random logits", DEPTH] == 0.25


def test_wide_gains_are_drawn_on_a_logarithmic_axis() -> None:
    def scale(explanation: Explanation) -> str:
        return why_figures(explanation)["gains"].to_dict()["layer"][0]["encoding"]["y"]["scale"].get("type", "linear")

    whole = full_explanation()
    assert scale(whole) == "linear"
    steep = replace(whole.layers[0], gains=replace(whole.layers[0].gains, mean=400.0))
    assert scale(replace(whole, layers=(steep, *whole.layers[1:]))) == "log"


def test_without_data_only_what_weights_give_is_drawn() -> None:
    assert {name.split("-")[0] for name in why_figures(weights_alone())} == {"eigenvalues", "verdicts"}
    assert why_figures(Explanation("nothing", (), ())) == {}


def test_figures_of_a_hostile_explanation_are_well_formed_and_literal() -> None:
    figures = why_figures(hostile_explanation())
    for chart in figures.values():
        svg = chart_svg(chart)
        words = " ".join(ElementTree.fromstring(svg).itertext())
        assert HOSTILE in words
        assert "NaN" not in svg
    assert "eigenvalues-layer-3" in figures
    assert "prediction-t2" in figures


def test_figures_are_saved_in_the_formats_asked_for(tmp_path: Path) -> None:
    small = replace(full_explanation(), layers=(layer_finding(1),), heads=(), skills=())
    written = save_why_figures(small, tmp_path / "new", formats=("svg", "png", "pdf"))
    names = [f"{name}.{kind}" for name in why_figures(small) for kind in ("svg", "png", "pdf")]
    assert [file.name for file in written] == names
    assert sorted(written) == sorted((tmp_path / "new").iterdir())
    starts = {".png": b"\x89PNG", ".pdf": b"%PDF", ".svg": b"<svg"}
    assert all(file.read_bytes().startswith(starts[file.suffix]) for file in written)
    with pytest.raises(UnsmoothError, match=r"formats among svg, png, pdf but got 'gif'"):
        save_why_figures(small, tmp_path, formats=("gif",))


def test_verdicts_and_tiers_that_lose_to_persistence_are_not_drawn() -> None:
    whole = full_explanation()
    first, second, other, verdicts = whole.skills
    wrong = [replace(one, accuracy=0.2, balanced_accuracy=0.2) for one in (first, verdicts)]
    lost = replace(whole, skills=(wrong[0], second, other, wrong[1]))
    assert {"verdicts", "prediction-t1"}.isdisjoint(why_figures(lost))
    page = report_html([], [lost])
    assert page.count("persistence in 25% (balanced 25%). They say what a layer repeated for ever would do") == 1
    assert "What decides, and what would change it" not in page
    assert "No tier foretells" not in page
    assert "No tier foretells" in report_html([], [replace(whole, skills=(wrong[0], other))])


def test_what_foretells_stands_before_verdicts() -> None:
    page = report_html([], [full_explanation()])
    order = [page.index(title) for title in ("Foretold against measured", "What changed t_sim", "Verdict by layer")]
    assert order == sorted(order)


def test_page_tells_reasons_and_skills(reports: dict[str, Path]) -> None:
    page = without_runtime(reports["why-alone"])
    for text in (
        "A stream 2.5 times as large would turn it.",
        KNOWS["T2"],
        "+0.878",
        "encoder.layer.5",
        "Attention was taken from 16 sequences.",
    ):
        assert text in page
    assert not [line for line in ABSENT if line in page]


def test_what_is_absent_is_said_in_one_line_each() -> None:
    page = report_html([], [weights_alone()])
    assert all(page.count(line) == 1 for line in ABSENT)
    bare = report_html([], [Explanation("nothing", (), ())])
    assert "No layer was explained." in bare
    assert "No eigenvalues are in this explanation." in bare


def test_scans_or_explanations_must_be_there() -> None:
    with pytest.raises(UnsmoothError, match="at least one scan"):
        report_html([])
    assert 'id="why-data"' not in report_html([plain_scan()])
    page = report_html([], [full_explanation("a"), full_explanation("a")])
    assert 'id="report-data"' not in page
    assert "<title>a, a (2) · unsmooth</title>" in page


def test_name_shared_by_scan_and_explanation_stands_once_in_the_heading() -> None:
    scan = full_scan()
    page = report_html([scan], [full_explanation(scan.name)])
    assert f"<title>{scan.name} · unsmooth</title>" in page


def test_hostile_page_is_escaped_and_its_json_strict(reports: dict[str, Path]) -> None:
    page = reports["why-hostile"].read_text(encoding="utf-8")
    assert HOSTILE not in page
    assert page.count("<script") == page.count("</script>") == 6
    assert "<img" not in without_runtime(reports["why-hostile"])
    data = block(page, "why-data")
    cells = data["parts"][0]["verdicts"][0]["tables"]["cells"]
    assert data["columns"][cells["reason"]][2] == f"because {HOSTILE}"
    assert data["parts"][0]["eigenvalues"][2]["caption"].endswith("2 were not finite.")


def test_charts_of_the_page_are_valid_vega_lite_and_stand_once() -> None:
    data = block(report_html([], [full_explanation(), full_explanation("another")]), "why-data")
    assert len(data["specs"]) == 10  # seven figures, attention in four quantities
    for spec in data["specs"]:
        altair.LayerChart.from_dict(spec)
    used = {panel["spec"] for part in data["parts"] for panels in part.values() for panel in panels}
    assert used == set(range(len(data["specs"])))


def large_explanation(name: str, depth: int, heads: int) -> Explanation:
    """As deep and wide as the largest open models, no two numbers alike."""
    dice = np.random.default_rng(len(name))
    reason = "The fastest mode in which all tokens are equal grows by 1.234, the fastest other one by 1.123. " * 2
    sizes = ("margin", "second_eigenvalue", "quotient_norm", "dobrushin", "entropy", "random_second_eigenvalue")
    clouds = dice.normal(size=(depth, 2048, 2)).view(complex)[..., 0]
    return replace(
        full_explanation(name),
        layers=tuple(
            replace(
                layer_finding(1), layer=layer + 1, reason=reason, change=reason, eigenvalues=(*clouds[layer], 9 + 0j)
            )
            for layer in range(depth)
        ),
        heads=tuple(
            replace(head_finding(layer, head), reason=reason, **dict(zip(sizes, dice.random(len(sizes)), strict=True)))
            for layer in range(1, depth + 1)
            for head in range(heads)
        ),
    )


@pytest.mark.parametrize(("count", "depth", "heads"), [(1, 126, 128), pytest.param(3, 80, 64, marks=pytest.mark.slow)])
def test_page_of_large_explanations_stays_under_two_megabytes(count: int, depth: int, heads: int) -> None:
    page = report_html([full_scan()], [large_explanation("x" * one, depth, heads) for one in range(1, count + 1)])
    assert len(page.encode()) < 2_000_000
    data = block(page, "why-data")
    panel = data["parts"][0]["eigenvalues"][0]
    drawn = data["columns"][panel["tables"]["cloud"]["re"]]
    assert 10 <= len(drawn) < 2049
    assert f"Drawn: {len(drawn)} of them" in panel["caption"]
    assert 9.0 in drawn


def test_page_of_an_ordinary_explanation_leaves_nothing_out() -> None:
    data = block(report_html([full_scan()], [full_explanation()]), "why-data")
    cells = data["parts"][0]["verdicts"][0]["tables"]["cells"]
    assert "Head 3 of layer 6 is sharpening." in data["columns"][cells["reason"]]
    assert "Drawn:" not in json.dumps(data)


def test_growth_over_the_stack_in_words() -> None:
    text = stack_in_words(Growth(math.log(2), math.log(0.5), 3))
    assert "the token mean grows by a factor of 2 a layer" in text
    assert "what differs between tokens by 0.5" in text
    assert "the token mean outgrows the rest by a factor of 64 in all" in text  # (2 / 0.5)³
    assert "the rest outgrows the token mean" in stack_in_words(Growth(0.0, 0.1, 3))
    assert "neither outgrows" in stack_in_words(Growth(0.1, 0.1, 3))
    assert "not finite" in stack_in_words(Growth(NAN, 0.1, 3))
