"""Skills over lineages and the registered quantities of trained models, against closed forms and by hand."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from benchmarks.trained_models import explain as driver
from benchmarks.trained_models.explain_page import page
from benchmarks.trained_models.models import TrainedModel
from benchmarks.trained_models.more import Entry
from benchmarks.trained_models.registered import (
    QUANTITIES,
    Curves,
    count_negative,
    measure_curves,
    positive_norms,
    registered_rows,
    slope,
)
from benchmarks.trained_models.skill import DEPTH, Model, by_lineage, fitted, skills_over
from scipy import stats
from torch import nn

from tests.explaining.seeing import BY_NAME, encoder, similarity, streams
from tests.report.fake_explanations import full_explanation
from unsmooth.evidence import Store
from unsmooth.evidence.claims.of_trained_models import REGISTERED, take_trained_models
from unsmooth.explaining import TIERS, explain, load_explanation
from unsmooth.explaining.score import PERSISTENCE
from unsmooth.models import find_anatomy
from unsmooth.scanning.inputs import preprocessing
from unsmooth.scanning.opening import open_data
from unsmooth.spectra import attention_spectrum

CURVES = Curves([0.5, 0.75, 0.875], [8.0, 4.0, 2.0], (0, 6), 0.0, None)


def model(name: str, measured: list[float], slope: float, offset: float, ours: bool = False) -> Model:
    """Every tier says what happens, but for a slope and an offset."""
    said = [slope * value + offset for value in measured]
    return Model(name, name, ours, measured, dict.fromkeys(TIERS, said))


def test_slope_and_offset_are_those_of_the_other_lineages() -> None:
    """Where all lineages share them a tier explains everything; a lineage that has others does not."""
    alike = [model(name, values, 2.0, 1.0) for name, values in (("a", [1.0, -1.0]), ("b", [3.0, -1.0, 2.0]))]
    other = model("c", [1.0, -1.0], -2.0, 1.0)
    for lineage in by_lineage(alike, "T1")[False].values():
        assert lineage["explained"] == pytest.approx(1.0)
    assert fitted(alike, "T1") == pytest.approx([-0.5, 0.5])
    # p = −2m + 1, so the line of the others says −m: Σ(m + m)²/Σm² is 4.
    assert by_lineage([*alike, other], "T1")[False]["c"]["explained"] == pytest.approx(1 - 4.0)


def test_lineages_weigh_the_same_in_a_fit_whatever_their_layers_and_variance() -> None:
    """Twice the model, in the same lineage, or ten times the change, changes nothing in the line that is fitted."""
    one, other = Model("a", "a", False, [1.0, 2.0], {"T1": [1.0, 0.0]}), model("b", [1.0, -1.0], 1.0, 0.0)
    twice = [one, replace(one, name="a2"), other]
    assert fitted(twice, "T1") == pytest.approx(fitted([one, other], "T1"))
    share = lambda line, each: ((np.array(each.measured) - each.features("T1") @ line) ** 2).sum() / each.variance  # noqa: E731
    best = fitted([one, other], "T1")
    least = share(best, one) + share(best, other)
    for step in ([0.01, 0.0], [-0.01, 0.0], [0.0, 0.01], [0.0, -0.01]):
        assert share(best + step, one) + share(best + step, other) > least


def test_directions_are_the_tiers_own_and_of_depth_alone_the_fitted_ones() -> None:
    rising = model("a", [1.0, 1.0, -1.0], 1.0, 0.0)
    upside_down = replace(rising, name="b", lineage="b", predicted={key: [-1.0, -1.0, 1.0] for key in TIERS})
    found = by_lineage([rising, upside_down], "T1")[False]
    assert found["a"]["balanced_accuracy"] == 1.0
    assert found["b"]["balanced_accuracy"] == 0.0
    assert by_lineage([rising, upside_down], DEPTH)[False]["a"]["balanced_accuracy"] == 1.0  # both fall at the end
    # Persistence says 0, 1, 1: one rise of two, and not the fall.
    assert by_lineage([rising, upside_down], PERSISTENCE)[False]["a"]["balanced_accuracy"] == pytest.approx(0.25)


def test_models_trained_here_are_scored_and_teach_nothing() -> None:
    public = [model("a", [1.0, -1.0], 2.0, 1.0), model("b", [3.0, -1.0], 2.0, 1.0)]
    ours = model("mine", [1.0, -2.0], -5.0, 3.0, ours=True)
    alone, both = skills_over(public, {"a"}), skills_over([*public, ours], {"a"})
    assert both["public"] == alone["public"]
    assert both["held out"]["lineages"] == ["b"]
    assert both["ours"]["lineages"] == ["mine"]
    assert both["ours"]["skills"]["T1"]["explained"]["value"] != pytest.approx(1.0)
    assert alone["ours"] == {"lineages": [], "skills": {}}


def test_intervals_are_students_over_lineages_and_gains_are_paired() -> None:
    drawn = np.random.default_rng(0)
    models = [model(name, drawn.normal(size=5).tolist(), 1.0, 0.0) for name in "abcd"]
    models = [
        replace(one, predicted=dict.fromkeys(TIERS, (np.array(one.measured) + drawn.normal(size=5)).tolist()))
        for one in models
    ]
    found = skills_over(models, set())["public"]["skills"]
    tier, other = (
        [found[name]["by_lineage"][lineage]["explained"] for lineage in "abcd"] for name in ("T2", PERSISTENCE)
    )
    interval = stats.ttest_1samp(tier, 0.0).confidence_interval(0.95)
    assert [found["T2"]["explained"][end] for end in ("value", "low", "high")] == pytest.approx(
        [np.mean(tier), interval.low, interval.high]
    )
    gain = found["T2"][f"explained, gain over {PERSISTENCE}"]
    paired = stats.ttest_rel(tier, other).confidence_interval(0.95)
    assert [gain["low"], gain["high"]] == pytest.approx([paired.low, paired.high])


def test_a_slope_is_that_of_a_line() -> None:
    assert slope([1.0, 0.5, 0.0, -0.5]) == -0.5
    values = np.random.default_rng(1).normal(size=9)
    assert slope(values.tolist()) == pytest.approx(stats.linregress(np.arange(9), values).slope)


def test_rates_in_closed_form() -> None:
    """1 − cosine and the rank both halve with every layer."""
    found = full_explanation()
    assert QUANTITIES["angle_rate"](found, CURVES) == pytest.approx(-math.log(2))
    assert QUANTITIES["rank_rate"](found, CURVES) == pytest.approx(-math.log(2))


def test_shares_of_heads_by_hand() -> None:
    """The verdicts of the four heads of each layer run through all four, so one in four smooths in every layer."""
    found = full_explanation()
    assert QUANTITIES["heads_not_smoothing"](found, CURVES) == 0.75
    assert QUANTITIES["dominance_and_change"](found, CURVES) == 0.0  # the same share everywhere
    # Second eigenvalues are .2, .3, .4, .5, and chance is .25.
    assert QUANTITIES["second_eigenvalue"](found, CURVES) == pytest.approx(0.35)
    assert QUANTITIES["heads_beyond_chance"](found, CURVES) == 0.75


def test_dominance_goes_with_the_change_as_spearman_says() -> None:
    found = full_explanation()
    smoothing = [4, 0, 3, 1, 2, 2]
    heads = [
        replace(head, verdict="smoothing" if head.head < smoothing[head.layer - 1] else "sharpening")
        for head in found.heads
    ]
    changed = replace(found, heads=tuple(heads))
    wanted = stats.spearmanr(smoothing, [one.logit_change for one in found.layers]).statistic
    assert QUANTITIES["dominance_and_change"](changed, CURVES) == pytest.approx(wanted)
    assert wanted > 0.75


def test_second_eigenvalue_of_a_causal_map_is_the_second_largest_entry_of_its_diagonal() -> None:
    entry = BY_NAME["gpt2-tiny"]
    ids = {"input_ids": entry.batch("none")["input_ids"][:1]}
    found = explain(entry.model(), ids, progress=False, jacobian=False, spectral_sequences=1)
    maps: list[torch.Tensor] = []
    with torch.no_grad(), find_anatomy(one := entry.model()).watch_attention(lambda layer, seen: maps.append(seen)):
        one(**ids)
    diagonals = torch.cat([seen[0] for seen in maps]).diagonal(dim1=1, dim2=2).sort(dim=1).values
    assert QUANTITIES["second_eigenvalue"](found, CURVES) == pytest.approx(diagonals[:, -2].mean().item(), abs=1e-6)
    wanted = [attention_spectrum(seen[0]).second_eigenvalue for seen in maps]
    assert torch.cat(wanted).mean().item() == pytest.approx(diagonals[:, -2].mean().item(), abs=1e-6)


def measured(model: nn.Module, data: Any, batches: int = 2) -> Curves:
    source = open_data(data, preprocessing(model, [find_anatomy(model)], None, None, 2, None))
    return measure_curves(model, source, batches)


def float64_curves(model: nn.Module, x: torch.Tensor) -> tuple[list[float], list[float], float]:
    """Mean cosine, effective rank and logit t_sim by their definitions, sequence by sequence in numpy."""
    with torch.no_grad():
        layers = [x]
        for layer in model.layers:
            layers.append(layer(layers[-1]))

    def cosine(tokens: Any) -> float:
        unit = tokens / np.linalg.norm(tokens, axis=1, keepdims=True)
        return float((unit @ unit.T)[~np.eye(len(unit), dtype=bool)].mean())

    def rank(tokens: Any) -> float:
        share = np.linalg.svd(tokens, compute_uv=False)
        share = share / share.sum()
        return float(np.exp(-(share * np.log(share)).sum()))

    def each(of: Any, stream: torch.Tensor) -> float:
        return float(np.mean([of(one.double().numpy()) for one in stream]))

    last = [similarity(one) for one in layers[-1]]
    logit = float(np.mean([math.log(share / (1 - share)) for share in last]))
    return [each(cosine, one) for one in layers], [each(rank, one) for one in layers], logit


def negative_encoder() -> nn.TransformerEncoder:
    model = encoder(layers=3)
    with torch.no_grad():
        model.layers[0].norm1.weight[:3] = -0.5
        model.layers[2].norm2.weight[7] = -2.0
    return model


def test_curves_and_ablation_against_float64() -> None:
    model, x = negative_encoder(), streams(4)
    found = measured(model, x)
    cosine, rank, logit = float64_curves(model, x)
    assert found.cosine == pytest.approx(cosine, abs=1e-5)
    assert found.rank == pytest.approx(rank, rel=1e-4)
    assert found.logit == pytest.approx(logit, abs=1e-5)
    assert tuple(found.negative) == (4, 3 * 2 * 8)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    positive = negative_encoder()
    with torch.no_grad():
        for layer in positive.layers:
            layer.norm1.weight.abs_()
            layer.norm2.weight.abs_()
    wanted = float64_curves(positive, x)[2]
    assert found.logit_without == pytest.approx(wanted, abs=1e-5)
    assert QUANTITIES["negative_weights_effect"](full_explanation(), found) == pytest.approx(
        abs(wanted - logit), abs=1e-5
    )
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_models_without_negative_weights_say_nothing_of_them() -> None:
    found = measured(encoder(), streams(4))
    assert found.logit_without is None
    assert QUANTITIES["negative_weights_effect"](full_explanation(), found) is None


def test_gemmas_norms_add_one_to_their_weights() -> None:
    model = BY_NAME["gemma-gemma2"].model()
    anatomy = find_anatomy(model)
    block = next(iter(anatomy.blocks.values()))
    with torch.no_grad():
        for parameter in (one for name, one in model.named_parameters() if "norm" in name):
            parameter.fill_(-0.5)  # multiplies by 0.5
        block.input_layernorm.weight[0] = -1.25  # by −0.25
    assert count_negative(anatomy)[0] == 1
    with positive_norms(anatomy):
        assert block.input_layernorm.weight[0].item() == -0.75
        assert block.input_layernorm.weight[1].item() == -0.5
    assert block.input_layernorm.weight[0].item() == -1.25


def test_rows_are_what_the_ledger_takes(tmp_path: Any) -> None:
    whole = full_explanation("a")
    pairs = [(replace(whole, name=name), CURVES) for name in ("a", "a2", "b", "demo:plain")]
    steeper = replace(CURVES, cosine=[0.5, 0.875, 0.96875])  # by a quarter with every layer
    pairs[1] = (pairs[1][0], steeper)
    rows = registered_rows(pairs, dict.fromkeys(("a", "a2"), "family"), ["demo:plain"])
    assert [row["id"] for row in rows] == list(REGISTERED)
    angles = next(row for row in rows if row["id"] == "angles-converge")
    assert angles["lineages"] == pytest.approx({"family": -1.5 * math.log(2), "b": -math.log(2)})
    assert angles["ours"] == pytest.approx({"demo:plain": -math.log(2)})
    assert next(row for row in rows if row["id"] == "negative-norm-weights-matter")["lineages"] == {}
    results = json.loads(json.dumps({"claims": rows}))
    assert len(take_trained_models(results, Store(tmp_path), {"commit": "", "hardware": "", "seconds": 1.0})) == 7


def test_what_was_measured_is_saved_and_the_page_comes_from_it(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("one", "two", "three")
    monkeypatch.setattr(driver, "MODELS", tuple(TrainedModel(name, (), (), "") for name in names[:2]))
    monkeypatch.setattr(driver, "MORE_MODELS", ())
    monkeypatch.setattr(driver, "OURS", names[2:])
    monkeypatch.setattr(driver, "LOOKED_AT", ("one",))
    monkeypatch.setattr(driver, "RESULT", tmp_path / "explain.json")
    monkeypatch.setattr(driver, "REGISTERED_RESULT", tmp_path / "registered.json")
    opened = []

    def entries(name: str, options: Any) -> Any:
        opened.append(name)
        torch.manual_seed(names.index(name))
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=True)
        model = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False).eval()
        for one in model.layers:
            nn.init.normal_(one.self_attn.in_proj_weight, std=names.index(name) + 0.5)
        yield Entry(TrainedModel(name, (), (), ""), model, streams(6, seed=names.index(name)))

    monkeypatch.setattr(driver, "_entries", entries)
    arguments = ["--explained", str(tmp_path / "saved"), "--out", str(tmp_path / "docs")]
    assert driver.main([*arguments, "--only", "one"]) == 0
    assert not (tmp_path / "explain.json").exists()
    assert driver.main(arguments) == 0
    assert opened == list(names)  # what is saved is not measured again
    results = json.loads((tmp_path / "explain.json").read_text(encoding="utf-8"))
    assert results["skills"]["public"]["lineages"] == ["one", "two"]
    assert results["skills"]["held out"]["lineages"] == ["two"]
    assert results["skills"]["public"]["skills"]["T4"]["explained"]["value"] == pytest.approx(1.0, abs=1e-3)
    saved = load_explanation(tmp_path / "saved" / "one")
    assert results["models"][0]["layers"][1]["logit_change"] == saved.layers[1].logit_change
    text = (tmp_path / "docs" / "README.md").read_text(encoding="utf-8")
    assert text == page(results)
    assert "## Lineages that others trained (2)" in text
    assert "| T4 | 1.00 " in text
    registered = json.loads((tmp_path / "registered.json").read_text(encoding="utf-8"))
    assert set(registered["claims"][0]["lineages"]) == {"one", "two"}
    assert set(registered["claims"][0]["ours"]) == {"three"}
