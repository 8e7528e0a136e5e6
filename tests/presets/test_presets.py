"""Published definitions against references written from their sources, and against models that they do not fit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import unsmooth
from tests.presets.references import REFERENCES, park_kim_amplitude, park_kim_variance
from tests.presets.streams import TEXTS, bert_stream, images, tiny_vit, vit_stream
from unsmooth.cli.app import run
from unsmooth.errors import UnsmoothError
from unsmooth.models import load
from unsmooth.presets import PRESETS, Preset

ON_IMAGES = ["dong", "dovonon", "evo_vit", "gong", "park_kim_amplitude", "park_kim_variance", "vita", "yu_zhang"]
ON_TEXTS = [name for name in REFERENCES if name not in ("evo_vit", "gong", "park_kim_amplitude", "park_kim_variance")]


@pytest.fixture(scope="module")
def vit() -> nn.Module:
    return tiny_vit()


@pytest.fixture(scope="module")
def bert(bert_folder):
    return load(str(bert_folder))


@pytest.fixture(scope="module")
def encoded(bert) -> dict[str, torch.Tensor]:
    return dict(bert.unsmooth_origin.tokenizer(TEXTS, padding=True, return_tensors="pt"))


def test_every_preset_has_a_reference_and_a_source():
    assert set(PRESETS) == set(REFERENCES)
    for preset in PRESETS.values():
        assert "arXiv" in preset.source or "issue #" in preset.source
        assert preset.summary
        assert preset.aggregation
    assert {name for name, one in PRESETS.items() if one.basis == "reconstructed"} == {"dovonon", "yu_zhang"}
    assert all(one.unknown for one in PRESETS.values() if one.basis != "code")


@pytest.mark.parametrize("name", ON_IMAGES)
def test_on_a_vit_with_a_class_token(vit, name):
    found = unsmooth.scan(vit, images(), preset=name, batch_size=2, progress=False)
    curve = found.curve(PRESETS[name].curve, "residual")
    np.testing.assert_allclose([row.mean for row in curve], REFERENCES[name](vit_stream(vit, images())), atol=2e-5)
    assert found.manifest["preset"]["source"] == PRESETS[name].source
    assert any(PRESETS[name].summary in note for note in found.notes)


@pytest.mark.parametrize(
    ("name", "reference"), [(one.__name__, one) for one in (park_kim_amplitude, park_kim_variance)]
)
def test_park_and_kim_look_between_attention_and_mlp_too(vit, name, reference):
    found = unsmooth.scan(vit, images(), preset=name, progress=False)
    stream = vit_stream(vit, images())
    between = reference(replace(stream, outputs=stream.mids))
    np.testing.assert_allclose([row.mean for row in found.curve(site="mid")], between, atol=2e-5)


@pytest.mark.parametrize("name", ON_TEXTS)
def test_on_a_padded_batch_of_texts(bert, encoded, name):
    found = unsmooth.scan(bert, encoded, preset=name, batch_size=4, progress=False)
    expected = REFERENCES[name](bert_stream(bert, encoded, frozenset({2, 3})))
    curve = found.curve(PRESETS[name].curve, "residual")
    np.testing.assert_allclose([row.mean for row in curve], expected, atol=2e-5)
    if PRESETS[name].minus is not None:
        first, off = found.curve(PRESETS[name].metrics[0]), found.curve(PRESETS[name].minus)
        width = [row.ci_high - row.ci_low for row in first]
        np.testing.assert_allclose([row.ci_high - row.ci_low for row in curve], width)
        assert curve[-1].mean == pytest.approx(first[-1].mean - off[-1].mean)


@pytest.mark.parametrize("name", ["evo_vit", "gong", "park_kim_amplitude", "park_kim_variance"])
def test_a_model_without_a_class_token_is_told_in_one_line(bert_folder, encoded, name, tmp_path, capsys):
    page = tmp_path / "page.txt"
    page.write_text("\n\n".join(TEXTS), encoding="utf-8")
    assert run(["scan", str(bert_folder), str(page), "--preset", name]) == 2
    told = capsys.readouterr().err
    assert f"one class token in front of its patches for preset {name!r}" in told
    assert "but got BertModel, which puts 0 tokens there" in told
    assert len(told.strip().splitlines()) == 1


def test_words_need_token_ids(vit):
    with pytest.raises(UnsmoothError, match="token ids, whose words self_similarity compares"):
        unsmooth.scan(vit, images(), preset="ethayarajh_self_similarity", progress=False)


@pytest.mark.parametrize("beside", [{"metrics": ["hfc_lfc"]}, {"sites": ("mlp",)}, {"tokens": "all"}])
def test_what_a_preset_fixes_cannot_be_asked_for_beside_it(vit, beside):
    with pytest.raises(UnsmoothError, match=f"'vita' alone, which fixes {next(iter(beside))}"):
        unsmooth.scan(vit, images(), preset="vita", progress=False, **beside)


def test_an_unknown_preset_is_answered_with_a_name(vit):
    with pytest.raises(UnsmoothError, match="Did you mean 'vita'"):
        unsmooth.scan(vit, images(), preset="vitta", progress=False)


def test_a_preset_that_no_scan_could_measure_is_refused_where_it_is_written():
    with pytest.raises(UnsmoothError, match="known metric"):
        Preset("mine", "", ("no_such_metric",), "all", ("residual",), "", "", "paper", "cosine")


def test_a_baseline_has_the_curve_too(bert, encoded):
    found = unsmooth.scan(bert, encoded, preset="ethayarajh_intra_sentence", baseline=True, progress=False)
    name = PRESETS["ethayarajh_intra_sentence"].curve
    assert found.baseline is not None
    assert len(found.baseline.curve(name)) == len(found.curve(name)) == 4
    assert found.sentence.startswith(name)


def test_ls_presets_tells_sources_and_what_is_not_known(capsys):
    assert run(["ls", "presets"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "VITA-Group/ViT-Anti-Oversmoothing issue #2" in told
    assert "reconstructed" in told
    assert "not known" in told
