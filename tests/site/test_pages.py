"""Pages made from registries: one for everything registered, with formula, picture and links that lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("latex2mathml")
pytest.importorskip("mkdocs")

from benchmarks.site import (
    claim_pages,
    host_pages,
    loss_pages,
    metric_pages,
    posthoc_pages,
    preset_pages,
    recipe_pages,
    remedy_pages,
)
from benchmarks.site.docstrings import formula, to_markdown
from benchmarks.site.links import ROOT, rewritten
from benchmarks.site.pictures import PATHS, moves

from unsmooth.evidence import CLAIMS
from unsmooth.functional import METRICS
from unsmooth.losses import LOSSES
from unsmooth.models import HOSTS
from unsmooth.posthoc import ESTIMATORS
from unsmooth.presets import PRESETS
from unsmooth.remedies import names
from unsmooth.training import RECIPES


@pytest.mark.parametrize(
    ("make", "registered"),
    [
        (host_pages.host_pages, HOSTS),
        (preset_pages.preset_pages, PRESETS),
        (remedy_pages.remedy_pages, names()),
        (loss_pages.loss_pages, LOSSES),
        (posthoc_pages.posthoc_pages, ESTIMATORS),
        (recipe_pages.recipe_pages, RECIPES),
        (claim_pages.claim_pages, CLAIMS),
    ],
)
def test_everything_registered_has_a_page(make, registered) -> None:
    front, *pages = make()
    assert {page.title for page in pages} == set(registered)
    for page in pages:
        assert f"]({Path(page.place).name})" in front.text
        assert page.text.startswith(f"# {page.title}\n")
        for place in rewritten(page.text, page.place)[1]:
            assert (ROOT / place).is_file()


def test_every_metric_has_definition_formula_source_and_picture(monkeypatch) -> None:
    monkeypatch.setattr(metric_pages, "picture", lambda metric: f"<img alt='{metric.name}'>")  # drawn in the next test
    front, *pages = metric_pages.metric_pages()
    assert {page.title for page in pages} == set(METRICS)
    for page in pages:
        metric = METRICS[page.title]
        assert metric.definition in page.text
        assert metric.paper in page.text
        assert "<math" in page.text, page.title
        if metric.reads in PATHS:  # those of other packages may read something else
            assert f"<img alt='{metric.name}'>" in page.text
        assert metric.definition.replace("|", r"\|") in front.text


@pytest.mark.parametrize("name", [name for name, metric in METRICS.items() if metric.reads in PATHS])
def test_a_picture_shows_what_the_metric_says_of_itself(name) -> None:
    metric, rows = METRICS[name], moves(METRICS[name])
    assert len(rows) >= 30
    first, last = rows[0], rows[-1]
    if metric.reads == "tokens" and metric.rises_when_alike is not None:
        assert (last["mean"] > first["mean"]) == metric.rises_when_alike
    if name == "mean_cosine":  # of (1 − t)g_i + tv with independent g and v: t²/(t² + (1 − t)²)
        middle = rows[len(rows) // 2]
        assert middle["t"] == 0.5
        assert middle["mean"] == pytest.approx(0.5, abs=0.05)
        assert last["mean"] == pytest.approx(1.0)


def test_all_that_metrics_of_ours_read_can_be_drawn() -> None:
    assert {metric.reads for metric in METRICS.values()} == set(PATHS)


def test_a_picture_is_an_image_without_a_file() -> None:
    from benchmarks.site.pictures import picture

    drawn = picture(METRICS["mean_cosine"])
    assert drawn is not None
    assert re.fullmatch(r'<img alt="mean_cosine from t = 0 to t = 1" src="data:image/svg\+xml;base64,[\w+/=]+">', drawn)


def test_docstrings_become_markdown() -> None:
    text = to_markdown(
        "What it is.\n\n.. math:: \\frac{a}{b}\n          = c\n\nwhere :math:`a` is a_i.\n\n"
        "Args:\n    x: One,\n        two.\n    mask: Three.\n\nReturns:\n    A value\n    per sequence.\n\n"
        "Example:\n    >>> 1 + 1\n    2\n"
    )
    formula_, inline = re.findall(r"<math.*?</math>", text)
    assert "<mfrac>" in formula_
    assert 'display="block"' in formula_
    assert 'display="inline"' in inline
    assert "- `x`: One, two.\n- `mask`: Three." in text
    assert "**Returns**\n\nA value per sequence." in text
    assert "**Example**\n\n```pycon\n>>> 1 + 1\n2\n```" in text


def test_a_formula_has_no_command_left_over() -> None:
    texts = {one.name: one.function.__doc__ for one in (*METRICS.values(), *LOSSES.values())}
    for name, text in (texts | {name: kind.__doc__ for name, kind in ESTIMATORS.items()}).items():
        written = re.sub(r"<annotation.*?</annotation>", "", to_markdown(text or ""))
        maths = re.findall(r"<math.*?</math>", written)
        assert maths, name
        assert not [one for one in maths if "\\" in one], name
    assert "&#x00023;" in formula(r"\#") or "#" in formula(r"\#")


@pytest.mark.parametrize(
    ("link", "page", "becomes"),
    [
        ("[a](../../README.md#x)", "training/guide.md", "[a](../index.md#x)"),
        ("[a](README.md)", "training/guide.md", "[a](README.md)"),
        ("![a](docs/models/mean_cosine.svg)", "index.md", "![a](models/mean_cosine.svg)"),
        ("[`r`](../../benchmarks/results)", "training/README.md", "`r`"),
        ("[a](../src/unsmooth/errors.py)", "theory.md", "[a](files/src/unsmooth/errors.py.txt)"),
        ("[a](https://x.y/z.md)", "theory.md", "[a](https://x.y/z.md)"),
        ("```\n[a](../README.md)\n```", "theory.md", "```\n[a](../README.md)\n```"),
    ],
)
def test_links_lead_to_the_site(link, page, becomes) -> None:
    assert rewritten(link, page)[0] == becomes
