"""Against the models of transformers themselves, in both directions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

import unsmooth
from tests.networks.tiny import DECODER, ENCODER, VIT, inputs_of, outputs_of, shaken
from unsmooth import networks
from unsmooth.errors import UnsmoothError

BERT = replace(ENCODER, transform_head=True, eps=1e-12)
GPT2 = replace(DECODER, memory=0, positions="learned")
EXPRESSIBLE = {
    "vit": VIT,
    "vit without biases": replace(VIT, qkv_bias=False, out_bias=False, mlp_bias=False, norm_bias=False),
    "bert": BERT,
    "bert, tanh, untied": replace(BERT, activation="gelu_tanh", tied=False),
    "bert, sinusoids": replace(BERT, positions="sinusoidal", mlp_bias=False),
    "bert, scaled sinusoids": replace(BERT, positions="scaled_sinusoidal", qkv_bias=False),
    "gpt2": GPT2,
    "gpt2, relu": replace(GPT2, activation="relu"),
    "gpt2, tanh, untied": replace(GPT2, activation="gelu_tanh", tied=False, positions="sinusoidal"),
}
THEIRS: dict[str, Any] = {
    "ViT": lambda: transformers.ViTForImageClassification(_config("ViT", image_size=8, patch_size=4, num_labels=5)),
    "ViT without qkv_bias": lambda: transformers.ViTForImageClassification(
        _config("ViT", image_size=8, patch_size=4, num_labels=5, qkv_bias=False, hidden_act="gelu_new")
    ),
    "BERT": lambda: transformers.BertForMaskedLM(_config("Bert", vocab_size=40, max_position_embeddings=12)),
    "BERT, untied": lambda: transformers.BertForMaskedLM(
        _config("Bert", vocab_size=40, max_position_embeddings=12, tie_word_embeddings=False)
    ),
    "GPT-2": lambda: transformers.GPT2LMHeadModel(
        transformers.GPT2Config(n_embd=16, n_layer=3, n_head=2, vocab_size=40, n_positions=12, bos_token_id=0)
    ),
}


def _config(name: str, **options: Any) -> Any:
    sizes = {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 24}
    return getattr(transformers, f"{name}Config")(**sizes, **options)


def logits(model: Any, inputs: Tensor) -> Tensor:
    with torch.no_grad():
        return model(inputs).logits


def apart(got: Tensor, wanted: Tensor) -> float:
    assert wanted.abs().max() > 0.1
    return float((got - wanted).abs().max())


@pytest.mark.parametrize("name", list(EXPRESSIBLE))
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
def test_theirs_computes_what_ours_does(name: str, dtype: torch.dtype, tolerance: float) -> None:
    network = shaken(networks.build(EXPRESSIBLE[name]), 0.2).to(dtype)
    inputs = inputs_of(network)
    model = networks.to_hugging_face(network)
    assert next(model.parameters()).dtype == dtype
    assert apart(logits(model, inputs), outputs_of(network, inputs)) < tolerance


@pytest.mark.parametrize("name", list(THEIRS))
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
def test_ours_computes_what_theirs_does(name: str, dtype: torch.dtype, tolerance: float) -> None:
    model = shaken(THEIRS[name](), 0.2).to(dtype)
    network = networks.from_hugging_face(model)
    inputs = inputs_of(network)
    assert apart(outputs_of(network, inputs), logits(model, inputs)) < tolerance


@pytest.mark.parametrize("name", ["vit", "bert", "gpt2", "bert, tanh, untied"])
def test_ours_comes_back_to_the_bit(name: str) -> None:
    network = shaken(networks.build(EXPRESSIBLE[name]))
    again = networks.from_hugging_face(networks.to_hugging_face(network))
    assert replace(again.config, init=network.config.init) == network.config
    same_state(again, network)


@pytest.mark.parametrize("name", list(THEIRS))
def test_theirs_comes_back_to_the_bit(name: str) -> None:
    model = shaken(THEIRS[name]())
    if name.startswith("BERT"):  # the first token type is added to the positions, and the second is not used
        nn.init.zeros_(model.bert.embeddings.token_type_embeddings.weight)
        model.cls.predictions.bias.data.copy_(model.cls.predictions.decoder.bias)  # untied, only the second is used
    again = networks.to_hugging_face(networks.from_hugging_face(model))
    if "without" in name:  # biases that are not there come back as zeros
        for key, value in model.state_dict().items():
            assert torch.equal(again.state_dict()[key], value), key
        return
    same_state(again, model)


def same_state(got: nn.Module, wanted: nn.Module) -> None:
    ours, theirs = got.state_dict(), wanted.state_dict()
    assert ours.keys() == theirs.keys()
    assert [key for key in theirs if not torch.equal(ours[key], theirs[key])] == []


def test_padding_is_masked_alike() -> None:
    network = shaken(networks.build(BERT), 0.2)
    model, ids = networks.to_hugging_face(network), inputs_of(network)
    mask = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0], [1, 1, 0, 0, 0, 0]])
    with torch.no_grad():
        theirs = model(input_ids=ids, attention_mask=mask).logits
    assert apart(outputs_of(network, ids, attention_mask=mask)[mask.bool()], theirs[mask.bool()]) < 1e-5


def test_torchs_generator_is_left_alone() -> None:
    network = networks.build(VIT)
    before = torch.random.get_rng_state()
    networks.to_hugging_face(network)
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (replace(VIT, activation="geglu"), "activation='geglu'"),
        (replace(VIT, norm="peri"), "norm='peri'"),
        (replace(VIT, pooling="mean"), "pooling='mean'"),
        (replace(BERT, norm="pre"), "norm='pre'"),
        (replace(BERT, transform_head=False), "transform_head=False"),
        (replace(BERT, embedding_norm=False), "embedding_norm=False"),
        (replace(BERT, embedding_scale=4.0), "embedding_scale=4.0"),
        (DECODER, "positions='relative'"),
        (replace(GPT2, norm="post"), "norm='post'"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.kind,
)
def test_what_they_cannot_say_is_refused(config: networks.Config, reason: str) -> None:
    with pytest.raises(UnsmoothError, match=r"^Expected .* Try .*\.$") as found:
        networks.to_hugging_face(networks.build(config))
    assert reason in str(found.value)


def test_remedies_are_refused() -> None:
    with pytest.raises(UnsmoothError, match="remedies applied"):
        networks.to_hugging_face(unsmooth.apply(networks.build(VIT), "deescalate"))


def test_what_we_cannot_say_is_refused() -> None:
    with pytest.raises(UnsmoothError, match="one of ViTForImageClassification"):
        networks.from_hugging_face(transformers.BertModel(_config("Bert", vocab_size=40)))
    with pytest.raises(UnsmoothError, match="'silu'"):
        networks.from_hugging_face(transformers.BertForMaskedLM(_config("Bert", vocab_size=40, hidden_act="silu")))
    scaled = transformers.GPT2Config(n_embd=16, n_layer=1, n_head=2, scale_attn_by_inverse_layer_idx=True)
    with pytest.raises(UnsmoothError, match="scale_attn_by_inverse_layer_idx=False"):
        networks.from_hugging_face(transformers.GPT2LMHeadModel(scaled))
