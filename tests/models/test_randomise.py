"""Fresh weights for the same architecture, and the hash that tells weights apart."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from tests.models import checkpoints
from tests.models.entries import ENTRIES
from tests.models.entry import Entry
from unsmooth.models import load, origin_of, weight_hash, with_random_weights

each_entry = pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)


class Mixed(nn.Module):
    """A module with a bare parameter, a buffer, and parts that can be reset."""

    scale: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.arange(6.0))
        self.attention = nn.MultiheadAttention(4, 2)
        self.norm = nn.LayerNorm(4)
        self.register_buffer("scale", torch.arange(3.0))


@each_entry
def test_fresh_weights_are_reproducible_and_private(entry: Entry) -> None:
    model = entry.model()
    before, state = weight_hash(model), torch.get_rng_state()
    fresh = with_random_weights(model, seed=3)
    assert torch.equal(torch.get_rng_state(), state)
    assert weight_hash(model) == before
    assert not fresh.training
    assert weight_hash(fresh) == weight_hash(with_random_weights(model, seed=3))
    assert weight_hash(fresh) != weight_hash(with_random_weights(model, seed=4))
    for name, parameter in fresh.named_parameters():
        original = model.get_parameter(name)
        assert (parameter.shape, parameter.dtype) == (original.shape, original.dtype)
        assert not torch.equal(parameter, original)
    with torch.no_grad():
        fresh(**entry.batch(entry.paddings[0]))


def test_transformers_initialisation_is_the_authors(tmp_path: Path) -> None:
    fresh = with_random_weights(checkpoints.save_bert(tmp_path, hidden_size=64, initializer_range=0.5), seed=0)
    weight = fresh.get_parameter("encoder.layer.0.output.dense.weight")
    assert abs(weight.std().item() - 0.5) < 0.05


def test_origin_keeps_the_tokenizer(tmp_path: Path) -> None:
    checkpoints.save_bert(tmp_path)
    origin = origin_of(with_random_weights(load(tmp_path), seed=0))
    assert origin is not None
    assert origin.id == f"{tmp_path} (random weights)"
    assert origin.tokenizer is not None
    assert origin.path is None


def test_dtypes_are_kept_tensor_by_tensor() -> None:
    model = next(e for e in ENTRIES if e.name == "llama-llama").model().to(torch.bfloat16)
    model.rotary_emb.inv_freq = model.rotary_emb.inv_freq.float()
    fresh = with_random_weights(model, seed=0)
    assert fresh.get_parameter("layers.0.mlp.up_proj.weight").dtype == torch.bfloat16
    assert fresh.get_buffer("rotary_emb.inv_freq").dtype == torch.float32


def test_parts_that_cannot_be_reset_are_shuffled() -> None:
    model = Mixed()
    with torch.no_grad():
        model.norm.weight.add_(1)
        model.attention.out_proj.bias.add_(1)
    fresh = with_random_weights(model, seed=1)
    token = fresh.get_parameter("token")
    assert not torch.equal(token, model.token)
    assert torch.equal(token.sort().values, model.token)
    assert torch.equal(fresh.get_buffer("scale"), model.scale)
    assert torch.equal(fresh.get_parameter("norm.weight"), torch.ones(4))
    # nn.MultiheadAttention starts this bias at zero; nn.Linear alone would not.
    assert torch.equal(fresh.get_parameter("attention.out_proj.bias"), torch.zeros(4))


def test_changed_transformers_model_keeps_its_shape(tmp_path: Path) -> None:
    model = checkpoints.save_bert(tmp_path)
    model.encoder.layer = model.encoder.layer[:1]
    fresh = with_random_weights(model, seed=0)
    assert [n for n, _ in fresh.named_parameters()] == [n for n, _ in model.named_parameters()]


def test_wrapper_is_taken_off() -> None:
    assert type(with_random_weights(nn.DataParallel(Mixed()), seed=0)) is Mixed


def test_hash_is_the_same_after_a_reload(tmp_path: Path) -> None:
    saved = checkpoints.save_bert(tmp_path)
    assert weight_hash(saved) == weight_hash(load(tmp_path)) == weight_hash(nn.DataParallel(saved))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_hash_changes_with_one_bit(dtype: torch.dtype) -> None:
    model = nn.Linear(3, 2).to(dtype)
    before = weight_hash(model)
    with torch.no_grad():
        model.weight.data.view(torch.uint8)[1, 0] ^= 1
    assert weight_hash(model) != before


def test_hash_knows_names_shapes_and_dtypes() -> None:
    plain = nn.Linear(2, 2, bias=False)
    flat, renamed, wide = nn.Linear(4, 1, bias=False), nn.Module(), nn.Linear(2, 2, bias=False)
    flat.weight.data = plain.weight.data.view(1, 4)
    renamed.kernel = nn.Parameter(plain.weight.data)
    wide.weight.data = plain.weight.data.double()
    assert len({weight_hash(model) for model in (plain, flat, renamed, wide)}) == 4


def test_hash_of_tied_and_empty_tensors() -> None:
    model = nn.Module()
    model.a = nn.Parameter(torch.zeros(0, 3))
    model.b = nn.Parameter(torch.tensor(2.0))
    model.c = model.b
    assert weight_hash(model) == weight_hash(model)
