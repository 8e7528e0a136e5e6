"""Metrics across sequences, across layers, on grids and of attention maps, in whole scans, against hooks and loops."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor, nn

import unsmooth
from tests.functional import references
from unsmooth import UnsmoothError
from unsmooth.models import load
from unsmooth.scanning.files import to_json

TEXTS = [
    "the cat sat on a mat",
    "one dog run past while rain fell over hills and the cat saw",
    "a dog sat on the cat while one mat saw hills",
    "the hills and the rain and the mat",
    "the cat sat on a mat",  # the same once more: one context
    "rain fell on the dog",
]
WORDS = ["self_similarity(contexts=2)", "maximum_explainable_variance(contexts=3)"]
MAPS = ["head_similarity", "attention_sink"]
EVERY = [*WORDS, "random_pair_cosine", "intra_sentence_similarity", "cosine_quantile(q=0.9)", "linear_cka", *MAPS]


@pytest.fixture(scope="module")
def bert(bert_folder: Path) -> nn.Module:
    return load(str(bert_folder))


@pytest.fixture(scope="module")
def found(bert: nn.Module) -> unsmooth.Scan:
    return unsmooth.scan(bert, TEXTS, metrics=EVERY, batch_size=4, progress=False)


@pytest.fixture(scope="module")
def by_hand(bert: nn.Module) -> tuple[list[list[int]], list[list[np.ndarray]], list[list[np.ndarray]]]:
    """Ids, hidden states by layer and text, and attention maps by layer and text, one text at a time."""
    tokenizer = bert.unsmooth_origin.tokenizer
    ids, states, maps = [], [], []
    bert.set_attn_implementation("eager")
    for text in TEXTS:
        encoded = tokenizer([text], return_tensors="pt")
        with torch.no_grad():
            output = bert(**encoded, output_hidden_states=True, output_attentions=True)
        ids.append(encoded["input_ids"][0, 1:-1].tolist())
        states.append([layer[0, 1:-1].double().numpy() for layer in output.hidden_states])
        maps.append([layer[0].double().numpy() for layer in output.attentions])
    bert.set_attn_implementation("sdpa")
    return ids, list(map(list, zip(*states, strict=True))), list(map(list, zip(*maps, strict=True)))


@pytest.mark.parametrize("name", WORDS)
def test_words_in_many_texts(found: unsmooth.Scan, by_hand: Any, name: str) -> None:
    ids, states, _ = by_hand
    metric = unsmooth.functional.parse_metric(name)
    reference = references.ENTRIES[metric.metric.name].reference
    for row, layer in zip(found.curve(name), states, strict=True):
        values = reference(layer, ids, **metric.options)
        assert row.sequences == len(values)
        assert row.mean == pytest.approx(np.mean(values), abs=1e-5)
        assert row.std == pytest.approx(np.std(values, ddof=1), abs=1e-5)
    assert found.metrics[name].unit == "word"
    assert found.changes[name].sequences == len(values)


def test_random_pairs(found: unsmooth.Scan, by_hand: Any) -> None:
    _, states, _ = by_hand
    curve = found.curve("random_pair_cosine")
    for row, layer in zip(curve, states, strict=True):
        assert row.mean == pytest.approx(references.random_pair_cosine(layer), abs=1e-5)
        assert math.isnan(row.ci_low)
    assert found.metrics["random_pair_cosine"].chance == 0.0
    assert found.changes["random_pair_cosine"].mean == pytest.approx(curve[-1].mean - curve[0].mean)


def test_attention_maps_leave_padding_out(found: unsmooth.Scan, by_hand: Any) -> None:
    _, _, maps = by_hand
    for name in MAPS:
        reference = references.ENTRIES[name].reference
        curve = found.curve(name)
        assert [(row.layer, row.site) for row in curve] == [(layer + 1, "maps") for layer in range(len(maps))]
        for row, layer in zip(curve, maps, strict=True):
            values = [reference(one) for one in layer]
            assert row.mean == pytest.approx(np.mean(values), abs=1e-5)
            assert row.std == pytest.approx(np.std(values, ddof=1), abs=1e-5)
            assert row.tokens == sum(one.shape[-1] for one in layer)
    assert "maps" in found.sites


def test_profiles(found: unsmooth.Scan, by_hand: Any) -> None:
    _, states, _ = by_hand
    matrix = found.profile("linear_cka")
    for one, other in itertools.product(range(len(states)), repeat=2):
        values = [references.linear_cka(x, y) for x, y in zip(states[one], states[other], strict=True)]
        assert matrix.lines[one].values[other] == pytest.approx(np.mean(values), abs=1e-5)
    neighbours = [matrix.lines[layer].values[layer - 1] for layer in range(1, len(states))]
    assert neighbours == pytest.approx([row.mean for row in found.curve("linear_cka")], abs=1e-5)
    histogram = found.profile("cosine_quantile(q=0.9)")
    for line, layer in zip(histogram.lines, states, strict=True):
        shares = []
        for x in layer:
            unit = x / np.linalg.norm(x, axis=1, keepdims=True)
            shares.append(np.histogram((unit @ unit.T)[np.triu_indices(len(x), 1)], 40, (-1, 1))[0])
        want = np.mean([share / share.sum() for share in shares], axis=0)
        np.testing.assert_allclose(line.values, want, atol=1e-6)


@pytest.mark.parametrize(("batch_size", "tokens"), [(1, "content"), (6, "content"), (2, "all"), (5, "all")])
def test_batches_change_nothing(bert: nn.Module, found: unsmooth.Scan, batch_size: int, tokens: str) -> None:
    if tokens == "all":
        found = unsmooth.scan(bert, TEXTS, metrics=EVERY, batch_size=4, tokens=tokens, progress=False)
    other = unsmooth.scan(bert, TEXTS, metrics=EVERY, batch_size=batch_size, tokens=tokens, progress=False)
    one, two = found.to_frame(), other.to_frame()
    assert list(one["sequences"]) == list(two["sequences"])
    for column in ("mean", "std"):
        np.testing.assert_allclose(one[column], two[column], atol=1e-5)
    for a, b in zip(found.profiles, other.profiles, strict=True):
        np.testing.assert_allclose(a.to_frame(), b.to_frame(), atol=1e-5)


def test_a_saved_scan_is_the_same(found: unsmooth.Scan, tmp_path: Path) -> None:
    again = unsmooth.load_scan(found.save(tmp_path / "scan"))
    assert again.profiles == found.profiles
    assert again.metrics == found.metrics
    content = json.loads(json.dumps(to_json(found), allow_nan=False))
    assert {profile["metric"] for profile in content["profiles"]} == {"linear_cka", "cosine_quantile(q=0.9)"}
    older = {key: value for key, value in content.items() if key != "profiles"}
    (tmp_path / "scan" / "scan.json").write_text(json.dumps(older))
    assert unsmooth.load_scan(tmp_path / "scan").profiles == ()


def test_too_few_texts_are_said(bert: nn.Module) -> None:
    few = unsmooth.scan(bert, TEXTS[:2], metrics=["self_similarity"], progress=False)
    assert "No word was met in enough sequences for self_similarity" in " ".join(few.notes)
    assert all(math.isnan(row.mean) and row.sequences == 0 for row in few.curve())


def test_a_metric_of_maps_may_head_the_scan(bert: nn.Module) -> None:
    alone = unsmooth.scan(bert, TEXTS, metrics=["head_similarity"], progress=False)
    assert alone.sentence.startswith("head_similarity goes from")
    assert "at layer 1 to" in alone.sentence


def vit(image: int | tuple[int, int] = 16) -> nn.Module:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    return transformers.ViTModel(transformers.ViTConfig(**sizes, image_size=image, patch_size=4)).eval()


@pytest.mark.parametrize("image", [(16, 16), (12, 24)], ids=["square", "wide"])
@pytest.mark.parametrize("tokens", ["content", "all"])
def test_patches_of_images_lie_on_their_grid(image: tuple[int, int], tokens: str) -> None:
    """The class token is left out of the grid also where all tokens are measured."""
    model, grid = vit(image), (image[0] // 4, image[1] // 4)
    pixels = torch.randn(5, 3, *image, generator=torch.Generator().manual_seed(0))
    names = ["relative_log_amplitude", "relative_log_amplitude(diagonal=False)", "feature_map_variance"]
    found = unsmooth.scan(model, pixels, metrics=names, tokens=tokens, batch_size=2, progress=False)
    with torch.no_grad():
        states = model(pixels, output_hidden_states=True).hidden_states
    for layer, state in enumerate(states):
        patches = [one[1:].double().numpy() for one in state]
        for name, diagonal in zip(names[:2], (True, False), strict=True):
            curves = [references.log_amplitude_curve(one, grid, diagonal) for one in patches]
            assert found.curve(name)[layer].mean == pytest.approx(np.mean([curve[-1] for curve in curves]), abs=1e-5)
            line = found.profile(name).lines[layer]
            np.testing.assert_allclose(line.values, np.mean(curves, axis=0), atol=1e-5)
            assert (line.at[0], line.at[-1]) == (0.0, 1.0)


def test_a_grid_may_be_given_where_there_is_no_image() -> None:
    x = torch.randn(3, 12, 8, generator=torch.Generator().manual_seed(0))
    model = nn.Sequential(nn.Identity(), nn.Identity())
    name = "relative_log_amplitude(grid=(3, 4))"
    found = unsmooth.scan(model, x, metrics=[name], blocks="*", progress=False)
    want = [references.relative_log_amplitude(one.double().numpy(), (3, 4)) for one in x]
    assert found.curve(name)[0].mean == pytest.approx(np.mean(want), abs=1e-5)


def test_a_given_grid_is_of_the_measured_tokens(bert: nn.Module) -> None:
    """Padding and special tokens are not on it; a text of another length has no value."""
    texts = ["a dog sat on the cat while one mat", "one dog run past while rain fell over hills", "the cat sat"]
    tokenizer = bert.unsmooth_origin.tokenizer
    found = unsmooth.scan(bert, texts, metrics=["relative_log_amplitude(grid=(3, 3))"], progress=False)
    want = []
    for text in texts[:2]:
        with torch.no_grad():
            last = bert(**tokenizer([text], return_tensors="pt")).last_hidden_state
        want.append(references.relative_log_amplitude(last[0, 1:-1].double().numpy(), (3, 3)))
    assert found.curve()[-1].sequences == 2
    assert found.curve()[-1].mean == pytest.approx(np.mean(want), abs=1e-5)


def test_images_that_turn_to_nan_keep_their_rows() -> None:
    model = vit()
    with torch.no_grad():
        model.embeddings.patch_embeddings.projection.weight.fill_(torch.nan)
    found = unsmooth.scan(model, torch.randn(2, 3, 16, 16), metrics=["relative_log_amplitude"], progress=False)
    assert not found.healthy
    assert [row.sequences for row in found.curve()] == [0, 0, 0]


@pytest.mark.parametrize(
    ("metric", "data", "message"),
    [
        (
            "relative_log_amplitude",
            torch.randn(2, 12, 8),
            r"Expected images whose patches lie on a grid, for relative_log_amplitude, but got data without images. "
            r"Try another metric, or relative_log_amplitude\(grid=\(height, width\)\)",
        ),
        ("relative_log_amplitude(grid=(5, 5))", torch.randn(2, 12, 8), r"Expected `grid` as \(height, width\) of 12"),
        (
            "self_similarity",
            torch.randn(2, 12, 8),
            'Expected token ids, whose words self_similarity compares, but got inputs without "input_ids". Try texts',
        ),
        ("head_similarity", torch.randn(2, 12, 8), "Expected one attention map at every layer but got Identity blocks"),
    ],
)
def test_what_does_not_fit_is_one_line(metric: str, data: Tensor, message: str) -> None:
    with pytest.raises(UnsmoothError, match=message):
        unsmooth.scan(nn.Sequential(nn.Identity()), data, metrics=[metric], blocks="*", progress=False)


SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}


def test_each_stack_has_the_metrics_that_fit_it() -> None:
    torch.manual_seed(0)
    text = {**SIZES, "vocab_size": 50, "max_position_embeddings": 16, "bos_token_id": 0, "eos_token_id": 49}
    vision = {**SIZES, "image_size": 16, "patch_size": 4}
    config = transformers.CLIPConfig(text_config={**text, "pad_token_id": 1}, vision_config=vision, projection_dim=8)
    ids, pixels = torch.randint(3, 20, (6, 8)), torch.randn(6, 3, 16, 16)
    names = ["relative_log_amplitude", "self_similarity(contexts=2)", "random_pair_cosine", "linear_cka"]
    data = {"input_ids": ids, "pixel_values": pixels}
    model = transformers.CLIPModel(config).eval()
    found = unsmooth.scan(model, data, metrics=names, batch_size=2, progress=False)
    measured = {(row.stack, row.metric) for row in found.rows}
    assert ("vision", names[0]) in measured
    assert ("text", names[0]) not in measured
    assert ("text", names[1]) in measured
    assert ("vision", names[1]) not in measured
    assert {profile.stack for profile in found.profiles if profile.metric == "linear_cka"} == {"text", "vision"}
    alone = unsmooth.scan(model, data, metrics=names[:1], progress=False)
    assert {row.stack for row in alone.rows} == {"vision"}
    assert "No metric asked for fits the text stack." in alone.notes
    with pytest.raises(UnsmoothError, match="a stack that relative_log_amplitude fits but got text alone"):
        unsmooth.scan(model, {"input_ids": ids}, metrics=names[:1], progress=False)


def test_registers_are_not_on_the_grid() -> None:
    torch.manual_seed(0)
    config = transformers.Dinov2WithRegistersConfig(**SIZES, image_size=28, patch_size=4, num_register_tokens=3)
    model = transformers.Dinov2WithRegistersModel(config).eval()
    pixels = torch.randn(3, 3, 28, 28)
    with torch.no_grad():
        patches = model.embeddings(pixels)[:, 4:]
    want = np.mean([references.relative_log_amplitude(one.double().numpy()) for one in patches])
    for tokens in ("content", "all"):
        found = unsmooth.scan(model, pixels, metrics=["relative_log_amplitude"], tokens=tokens, progress=False)
        assert found.curve()[0].mean == pytest.approx(want, abs=1e-5)


def test_a_scan_without_a_profile_says_so(found: unsmooth.Scan) -> None:
    with pytest.raises(UnsmoothError, match=r"Expected a metric with a profile \(.*linear_cka at residual"):
        found.profile("random_pair_cosine")


def test_broken_texts_are_left_out_of_all(bert: nn.Module) -> None:
    """A text that turns to NaN in the last block counts there in nothing, and everywhere else as before."""

    def poison(module: nn.Module, args: Any, output: Tensor) -> Tensor:
        return torch.where(torch.arange(len(output))[:, None, None] == 1, torch.nan, output)

    names = ["random_pair_cosine", "self_similarity(contexts=2)", "cosine_quantile", "linear_cka"]
    whole = unsmooth.scan(bert, TEXTS, metrics=names, progress=False)
    handle = bert.encoder.layer[-1].register_forward_hook(poison)
    broken = unsmooth.scan(bert, TEXTS, metrics=names, progress=False)
    handle.remove()
    rest = unsmooth.scan(bert, [text for row, text in enumerate(TEXTS) if row != 1], metrics=names, progress=False)
    for name in names:
        assert broken.curve(name)[-2].mean == pytest.approx(whole.curve(name)[-2].mean, abs=1e-6)
        assert broken.curve(name)[-1].mean == pytest.approx(rest.curve(name)[-1].mean, abs=1e-5)
    assert broken.profile("linear_cka").lines[-1].sequences == len(TEXTS) - 1
    got = broken.profile("linear_cka").lines[-1].values
    assert got[0] == pytest.approx(rest.profile("linear_cka").lines[-1].values[0], abs=1e-5)
