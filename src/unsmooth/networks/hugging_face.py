"""Our networks as models of transformers, and the other way round, where both compute the same.

ViT is ViTForImageClassification, a post-norm Encoder with the head of BERT is BertForMaskedLM, a pre-norm Decoder with
absolute positions is GPT2LMHeadModel. What one side cannot say is refused. A pre-norm Encoder has no counterpart:
RoBERTa-PreLayerNorm counts positions by its padding id, so that a text which contains that id comes out otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from unsmooth.errors import expected
from unsmooth.networks import layouts
from unsmooth.networks.config import Config, DecoderConfig, EncoderConfig, ViTConfig
from unsmooth.networks.decoder import Decoder
from unsmooth.networks.encoder import Encoder
from unsmooth.networks.saving import build
from unsmooth.networks.vit import ViT

# Their name for an activation to ours; the first of several is the one that is written.
_ACTIVATIONS = {"gelu": "gelu", "relu": "relu", "gelu_pytorch_tanh": "gelu_tanh", "gelu_new": "gelu_tanh"}


def to_hugging_face(network: nn.Module) -> Any:
    """The same model in transformers, in eval mode, with the same weights and dtype.

    Biases that the network has not are zeros there, and sinusoidal positions a table. Rates of dropout go along, but
    not the places at which it acts: outputs agree in evaluation.

    Raises:
        UnsmoothError: The network has something that the other model has not.
    """
    if not isinstance(network, ViT | Encoder | Decoder):
        raise expected("a ViT, an Encoder or a Decoder of unsmooth.networks", type(network).__name__, "build(config)")
    if any(".unsmooth." in name for name, _ in network.named_modules()):
        raise expected("a network without remedies", "one with remedies applied", "unsmooth.fold or unsmooth.undo")
    _check_expressible(network.config)
    with torch.random.fork_rng(devices=[]):  # the weights that transformers draws are replaced
        model = _empty_like(network.config).to(next(network.parameters()).dtype)
    state = dict(network.state_dict())
    if "positions.table" not in state and not isinstance(network, ViT):
        state["positions.table"] = _table(network)
    pairs = _pairs(network.config, model.state_dict())
    model.load_state_dict(_with_tied(layouts.to_theirs(pairs, state, model.state_dict()), network.config))
    return model.eval()


def from_hugging_face(model: Any) -> ViT | Encoder | Decoder:
    """The same model as one of our networks, in eval mode, with the same weights and dtype.

    BERT's embedding of the first token type is added to the positions.

    Raises:
        UnsmoothError: The model is of another class, or computes something that our networks do not.
    """
    name = type(model).__name__
    if name not in _READERS:
        raise expected(f"one of {', '.join(_READERS)}", name, "a model of one of these classes")
    config = _READERS[name](model.config)
    theirs = dict(model.state_dict())
    network = build(config).to(next(model.parameters()).dtype)
    found = layouts.to_ours(_pairs(config, theirs), theirs, network.state_dict())
    if name == "BertForMaskedLM":
        found["positions.table"] += theirs["bert.embeddings.token_type_embeddings.weight"][0]
    network.load_state_dict(found)
    return network.eval()


def _pairs(config: Config, theirs: Mapping[str, Tensor]) -> list[layouts.Pair]:
    if isinstance(config, ViTConfig):
        return layouts.vit(config.depth, theirs)
    lay_out = layouts.bert if isinstance(config, EncoderConfig) else layouts.gpt2
    return lay_out(config.depth, config.tied)


def _with_tied(state: dict[str, Tensor], config: Config) -> dict[str, Tensor]:
    """The keys under which transformers holds one tensor a second time."""
    if isinstance(config, EncoderConfig):
        state["cls.predictions.bias"] = state["cls.predictions.decoder.bias"]
    if isinstance(config, EncoderConfig | DecoderConfig) and config.tied:
        words, head = ("bert.embeddings.word_embeddings", "cls.predictions.decoder")
        if isinstance(config, DecoderConfig):
            words, head = ("transformer.wte", "lm_head")
        state[f"{head}.weight"] = state[f"{words}.weight"]
    return state


def _table(network: nn.Module) -> Tensor:
    positions = network.get_submodule("positions")
    table: Tensor = positions.get_buffer("table")
    scale = getattr(positions, "scale", None)
    return table if scale is None else table * scale


def _check_expressible(config: Config) -> None:
    needed: dict[str, Any] = {"norm": "pre"}
    if isinstance(config, ViTConfig):
        needed["pooling"] = "class"
    elif isinstance(config, EncoderConfig):
        needed = {"norm": "post", "embedding_norm": True, "transform_head": True, "embedding_scale": 1.0}
    else:
        needed |= {"memory": 0, "embedding_scale": 1.0}
        if config.positions == "relative":
            raise expected("absolute positions", "positions='relative', which GPT-2 has not", 'positions="learned"')
    if config.activation == "geglu":
        raise expected("a plain MLP", "activation='geglu', a gate that they have not", 'activation="gelu"')
    for name, value in needed.items():
        if getattr(config, name) != value:
            got = f"{name}={getattr(config, name)!r}"
            raise expected(f"{name}={value!r} for a {config.kind} in transformers", got, "unsmooth.networks alone")


def _empty_like(config: Config) -> Any:
    import transformers

    activation = next(theirs for theirs, ours in _ACTIVATIONS.items() if ours == config.activation)
    sizes = {
        "hidden_size": config.dim,
        "num_hidden_layers": config.depth,
        "num_attention_heads": config.heads,
        "intermediate_size": config.hidden,
        "hidden_act": activation,
        "hidden_dropout_prob": config.dropout,
        "attention_probs_dropout_prob": 0.0,
        "layer_norm_eps": config.eps,
    }
    if isinstance(config, ViTConfig):
        picture = {"image_size": config.image, "patch_size": config.patch, "num_channels": config.channels}
        return transformers.ViTForImageClassification(
            transformers.ViTConfig(**sizes, **picture, num_labels=config.classes)
        )
    text = {"vocab_size": config.vocabulary, "tie_word_embeddings": config.tied}
    if isinstance(config, EncoderConfig):
        return transformers.BertForMaskedLM(
            transformers.BertConfig(**sizes, **text, max_position_embeddings=config.length)
        )
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            **text,
            n_embd=config.dim,
            n_layer=config.depth,
            n_head=config.heads,
            n_inner=config.hidden,
            n_positions=config.length,
            activation_function=activation,
            layer_norm_epsilon=config.eps,
            resid_pdrop=config.dropout,
            embd_pdrop=config.dropout,
            attn_pdrop=0.0,
            bos_token_id=None,
            eos_token_id=None,
        )
    )


def _read_vit(theirs: Any) -> ViTConfig:
    return ViTConfig(
        **_read_sizes(theirs),
        qkv_bias=bool(theirs.qkv_bias),
        image=_square(theirs.image_size),
        patch=_square(theirs.patch_size),
        channels=theirs.num_channels,
        classes=theirs.num_labels,
    )


def _read_bert(theirs: Any) -> EncoderConfig:
    _check_plain(theirs, is_decoder=False, add_cross_attention=False, position_embedding_type="absolute")
    return EncoderConfig(
        **_read_sizes(theirs),
        norm="post",
        vocabulary=theirs.vocab_size,
        length=theirs.max_position_embeddings,
        tied=bool(theirs.tie_word_embeddings),
        embedding_norm=True,
        transform_head=True,
    )


def _read_gpt2(theirs: Any) -> DecoderConfig:
    _check_plain(theirs, scale_attn_weights=True, scale_attn_by_inverse_layer_idx=False, add_cross_attention=False)
    return DecoderConfig(
        depth=theirs.n_layer,
        dim=theirs.n_embd,
        heads=theirs.n_head,
        hidden=theirs.n_inner or 4 * theirs.n_embd,
        activation=_activation(theirs.activation_function),
        eps=theirs.layer_norm_epsilon,
        dropout=theirs.resid_pdrop,
        vocabulary=theirs.vocab_size,
        length=theirs.n_positions,
        positions="learned",
        tied=bool(theirs.tie_word_embeddings),
    )


_READERS: Mapping[str, Callable[[Any], Config]] = {
    "ViTForImageClassification": _read_vit,
    "BertForMaskedLM": _read_bert,
    "GPT2LMHeadModel": _read_gpt2,
}


def _read_sizes(theirs: Any) -> dict[str, Any]:
    return {
        "depth": theirs.num_hidden_layers,
        "dim": theirs.hidden_size,
        "heads": theirs.num_attention_heads,
        "hidden": theirs.intermediate_size,
        "activation": _activation(theirs.hidden_act),
        "eps": theirs.layer_norm_eps,
        "dropout": theirs.hidden_dropout_prob,
    }


def _activation(name: str) -> str:
    if name not in _ACTIVATIONS:
        raise expected(f"one of the activations {', '.join(_ACTIVATIONS)}", repr(name), "a model with one of them")
    return _ACTIVATIONS[name]


def _square(side: Any) -> int:
    sides = set(side) if isinstance(side, list | tuple) else {side}
    if len(sides) > 1:
        raise expected("square images and patches", repr(side), "a model with such")
    return int(sides.pop())


def _check_plain(theirs: Any, **wanted: Any) -> None:
    for name, value in wanted.items():
        if getattr(theirs, name, value) != value:
            raise expected(f"{name}={value!r}", repr(getattr(theirs, name)), "a model with the usual setting")
