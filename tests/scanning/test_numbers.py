"""The numbers of a scan against hooks, masks and means written out by hand."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import scipy.stats
import torch
import transformers
from torch import Tensor, nn

import unsmooth
from unsmooth.models import load

LONG = (
    "the cat sat on a mat",
    "one dog run past while rain fell over hills and the cat saw",
    "a dog sat on the cat while one mat saw hills",
    "the hills and the rain and the mat",
)


def mean_cosine_by_loop(x: np.ndarray) -> float:
    """All pairs i ≠ j, one at a time."""
    values = [
        float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b))) for a, b in itertools.permutations(x.astype(float), 2)
    ]
    return float(np.mean(values))


def hidden_states(model: nn.Module, inputs: dict[str, Tensor]) -> list[Tensor]:
    """Block input and outputs of a BERT, taken with plain hooks."""
    seen: list[Tensor] = []
    handles = [model.encoder.layer[0].register_forward_pre_hook(lambda module, args: seen.append(args[0]))]
    handles += [
        layer.register_forward_hook(lambda module, args, output: seen.append(output)) for layer in model.encoder.layer
    ]
    with torch.no_grad():
        model(**inputs)
    for handle in handles:
        handle.remove()
    return seen


@pytest.fixture(scope="module")
def bert(bert_folder):
    return load(str(bert_folder))


@pytest.mark.parametrize("tokens", ["content", "all"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_mean_cosine_of_padded_texts_is_the_mean_of_hand_made_sequence_values(bert, tokens, side):
    tokenizer = bert.unsmooth_origin.tokenizer
    tokenizer.padding_side = side
    encoded = dict(tokenizer(list(LONG), padding=True, return_tensors="pt"))
    tokenizer.padding_side = "right"
    keep = encoded["attention_mask"].bool()
    if tokens == "content":
        keep &= ~torch.isin(encoded["input_ids"], torch.tensor([2, 3]))
    found = unsmooth.scan(bert, encoded, metrics=["mean_cosine"], tokens=tokens, batch_size=3, progress=False)
    for layer, states in enumerate(hidden_states(bert, encoded)):
        values = [mean_cosine_by_loop(x[row].numpy()) for x, row in zip(states, keep, strict=True)]
        row = found.curve()[layer]
        assert row.layer == layer
        assert row.mean == pytest.approx(np.mean(values), abs=1e-5)
        assert row.std == pytest.approx(np.std(values, ddof=1), abs=1e-5)
        low, high = scipy.stats.t.interval(0.95, len(values) - 1, np.mean(values), scipy.stats.sem(values))
        assert (row.ci_low, row.ci_high) == pytest.approx((low, high), abs=1e-4)
        assert (row.sequences, row.tokens) == (len(LONG), int(keep.sum()))


def test_padding_more_changes_nothing(bert, texts):
    encoded = dict(bert.unsmooth_origin.tokenizer(texts, padding=True, return_tensors="pt"))
    wider = {key: nn.functional.pad(value, (0, 20)) for key, value in encoded.items()}
    one = unsmooth.scan(bert, encoded, progress=False).to_frame()
    two = unsmooth.scan(bert, wider, progress=False).to_frame()
    np.testing.assert_allclose(one["mean"], two["mean"], atol=1e-5, rtol=1e-5)
    assert list(one["tokens"]) == list(two["tokens"])


def test_batch_size_changes_nothing(bert, texts):
    one = unsmooth.scan(bert, texts, batch_size=1, progress=False).to_frame()
    many = unsmooth.scan(bert, texts, batch_size=5, progress=False).to_frame()
    for column in ("mean", "std", "ci_low"):
        np.testing.assert_allclose(one[column], many[column], atol=1e-5, rtol=1e-5)


def test_the_frame_is_tidy_and_complete(bert, texts):
    frame = unsmooth.scan(bert, texts, sites=("residual", "mid"), progress=False).to_frame()
    columns = ["layer", "site", "metric", "mean", "std", "ci_low", "ci_high", "sequences", "tokens"]
    assert list(frame.columns) == columns
    metrics = [metric.name for metric in unsmooth.functional.METRICS.values() if metric.default]
    residual = frame[frame.site == "residual"]
    assert sorted(set(zip(residual.layer, residual.metric, strict=True))) == sorted(
        itertools.product(range(4), metrics)
    )
    assert sorted(set(frame[frame.site == "mid"].layer)) == [1, 2, 3]


def test_the_change_is_paired_by_sequence(bert):
    found = unsmooth.scan(bert, list(LONG), metrics=["mean_cosine"], progress=False)
    tokenizer = bert.unsmooth_origin.tokenizer
    differences = []
    for text in LONG:
        states = hidden_states(bert, dict(tokenizer([text], return_tensors="pt")))
        first, last = (mean_cosine_by_loop(states[index][0, 1:-1].numpy()) for index in (0, -1))
        differences.append(last - first)
    change = found.changes["mean_cosine"]
    assert change.mean == pytest.approx(np.mean(differences), abs=1e-5)
    half = scipy.stats.t.ppf(0.975, len(LONG) - 1) * scipy.stats.sem(differences)
    assert change.ci_high - change.mean == pytest.approx(half, abs=1e-5)


def test_options_and_rank_metrics_by_name(bert, texts):
    names = ["mean_cosine(absolute=True, with_self=True)", "effective_rank"]
    found = unsmooth.scan(bert, texts, metrics=names, progress=False)
    assert list(found.metrics) == names
    assert "absolute=True" in found.metrics[names[0]].definition
    assert all(1 <= row.mean <= 32 for row in found.curve("effective_rank"))


def test_pair_metrics_compare_a_layer_with_the_one_before(bert):
    found = unsmooth.scan(bert, list(LONG), metrics=["token_diversity", "escalation_rate"], progress=False)
    assert [row.layer for row in found.curve("escalation_rate")] == [1, 2, 3]
    one = unsmooth.scan(bert, [LONG[0]], metrics=["token_diversity", "escalation_rate"], batch_size=1, progress=False)
    diversity = [row.mean for row in one.curve("token_diversity")]
    rates = [row.mean for row in one.curve("escalation_rate")]
    assert rates == pytest.approx([1 - b / a for a, b in itertools.pairwise(diversity)], abs=1e-5)


@pytest.mark.parametrize("batch_first", [True, False])
def test_torch_encoder_reads_the_padding_its_blocks_are_given(batch_first):
    torch.manual_seed(0)
    block = nn.TransformerEncoderLayer(16, 2, 32, batch_first=batch_first)
    model = nn.TransformerEncoder(block, 2).eval()
    x = torch.randn(3, 7, 16)
    lengths = (7, 4, 5)
    padding = torch.stack([torch.arange(7) >= length for length in lengths])
    inputs = {"src": x if batch_first else x.transpose(0, 1), "src_key_padding_mask": padding}
    found = unsmooth.scan(model, [inputs], metrics=["mean_cosine"], progress=False)
    assert found.curve()[0].mean == pytest.approx(
        np.mean([mean_cosine_by_loop(row[:length].numpy()) for row, length in zip(x, lengths, strict=True)]), abs=1e-5
    )
    assert found.curve()[-1].tokens == sum(lengths)
    alone = []
    for row, length in zip(x, lengths, strict=True):
        short = row[None, :length]
        with torch.no_grad():
            output = model(short if batch_first else short.transpose(0, 1))
        alone.append(mean_cosine_by_loop(output.reshape(length, 16).numpy()))
    assert found.curve()[-1].mean == pytest.approx(np.mean(alone), abs=1e-5)


@pytest.mark.parametrize(("family", "special"), [("ViT", 1), ("DeiT", 2)])
def test_class_tokens_of_vision_models_are_no_content(family, special):
    config = getattr(transformers, f"{family}Config")(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, image_size=16, patch_size=4
    )
    model = getattr(transformers, f"{family}Model")(config).eval()
    pixels = torch.randn(2, 3, 16, 16)
    content = unsmooth.scan(model, pixels, progress=False)
    everything = unsmooth.scan(model, pixels, tokens="all", progress=False)
    assert content.rows[0].tokens == 2 * 16
    assert everything.rows[0].tokens == 2 * (16 + special)
    with torch.no_grad():
        patches = model.embeddings(pixels)[:, special:]
    expected = np.mean([mean_cosine_by_loop(x.numpy()) for x in patches])
    assert content.curve()[0].mean == pytest.approx(expected, abs=1e-5)


def test_one_shared_block_is_as_many_layers_as_calls():
    config = transformers.AlbertConfig(
        hidden_size=16,
        embedding_size=8,
        num_hidden_layers=5,
        num_attention_heads=2,
        intermediate_size=32,
        vocab_size=50,
    )
    model = transformers.AlbertModel(config)
    assert unsmooth.scan(model, torch.randint(5, 50, (2, 6)), progress=False).layers == (0, 1, 2, 3, 4, 5)


def test_the_last_layer_is_the_block_output_and_not_the_final_norm():
    config = transformers.GPT2Config(n_embd=16, n_layer=2, n_head=2, vocab_size=50, n_positions=16)
    model = transformers.GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        model.transformer.ln_f.bias.fill_(100.0)  # would make all tokens alike
    found = unsmooth.scan(model, torch.randint(5, 50, (2, 8)), progress=False)
    assert found.curve()[-1].mean < 0.9


def test_bfloat16_models_are_summed_in_float32():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Identity(), nn.Identity()).to(torch.bfloat16)
    x = (torch.randn(2, 400, 64) * 0.33 + torch.randn(64)).to(torch.bfloat16)
    found = unsmooth.scan(model, x, blocks="*", progress=False)
    exact = np.mean([mean_cosine_by_loop(row[:60].double().numpy()) for row in x[:, :60]])
    assert found.curve()[0].mean == pytest.approx(exact, abs=0.02)
    precise = unsmooth.scan(nn.Sequential(nn.Identity()).double(), x.double(), blocks="*", progress=False)
    assert found.curve()[0].mean == pytest.approx(precise.curve()[0].mean, abs=1e-6)


def test_chance_of_t_sim_averages_one_over_n(bert):
    found = unsmooth.scan(bert, list(LONG), metrics=["token_similarity"], progress=False)
    expected = np.mean([1 / len(text.split()) for text in LONG])
    assert found.metrics["token_similarity"].chance == pytest.approx(expected)


def test_chance_without_a_closed_form_is_simulated(bert):
    found = unsmooth.scan(bert, list(LONG), metrics=["mean_cosine(absolute=True)", "dirichlet_energy"], progress=False)
    chance = found.metrics["mean_cosine(absolute=True)"].chance
    assert chance == pytest.approx(math.sqrt(2 / (math.pi * 32)), rel=0.1)  # E|cos| of Gaussian vectors
    assert found.metrics["dirichlet_energy"].chance is None
