"""The settings each remedy is tried with: what a new remedy adds to join the harness.

Options away from the neutral setting, one variant for every way the remedy can work. A host that a variant refuses is
named here, so that a refusal nobody meant is a failure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.remedies.hosts import HOSTS


@dataclass(frozen=True)
class Setting:
    """One way to apply a remedy.

    Args:
        options: What is handed to `apply`.
        refused_by: The hosts that cannot have it; "every" for all of them.
        neutral: Whether the remedy's neutral setting, on top of these options, changes nothing.
        as_loaded: Options that give the model which loading a plain checkpoint gives, where applying the remedy changes
            weights of the model itself, which the checkpoint then replaces.
        unpadded: Whether it refuses batches with padding.
    """

    options: Mapping[str, Any] = field(default_factory=dict)
    refused_by: tuple[str, ...] = ()
    neutral: bool = True
    as_loaded: Mapping[str, Any] = field(default_factory=dict)
    unpadded: bool = False


def _all_but(*names: str) -> tuple[str, ...]:
    return tuple(host.name for host in HOSTS if host.name not in names)


_PRE_NORM = (
    *("vit", "deit", "gpt2", "neox_sequential", "llama", "qwen2", "qwen3", "torch_pre", "torch_causal"),
    *("own_vit", "own_encoder_peri", "own_decoder", "timm_vit", "clip_text", "clip_vision", "siglip_vision", "dinov2"),
    *("gemma", "gemma2", "gemma3", "t5_encoder", "t5", "swin", "modernbert", "bloom", "phi3"),
    *("falcon_in_turn", "mixtral", "mistral", "whisper", "torch_decoder_pre"),
)
# Attention and MLP read one norm.
_ONE_NORM = ("phi", "falcon_one_norm")
_PARALLEL = ("neox_parallel", "falcon", *_ONE_NORM)
_NOT_POST_NORM = (*_PRE_NORM, *_PARALLEL)
_POST_NORM = (
    *("bert", "roberta", "mpnet", "albert", "bert_decoder", "torch_post", "torch_tokens_first"),
    *("own_encoder_post", "own_decoder_relative", "deberta_v2", "torch_decoder_post"),
)
_WITH_ENCODER = ("t5", "whisper")
# With cross-attention, which adds to the stream between attention and MLP.
_CROSSED = ("t5", "whisper", "torch_decoder_post", "torch_decoder_pre")
_PERI_NORM = ("own_encoder_peri", "gemma2", "gemma3")
_DECODERS = ("gpt2", "neox_parallel", "neox_sequential", "llama", "qwen2", "qwen3", "bert_decoder")
_CAUSAL = (
    *(*_DECODERS, "torch_causal", "own_decoder", "own_decoder_relative"),
    *("clip_text", "gemma", "gemma2", "gemma3", "t5", "bloom", "falcon", "phi3", *_ONE_NORM),
    *("falcon_in_turn", "mixtral", "mistral", "whisper", "torch_decoder_post", "torch_decoder_pre"),
)
# Their norms multiply by one more than their weights.
_ONE_MORE = ("gemma", "gemma2", "gemma3")
# Told positions by token from outside, windowed, or one block for all layers: no place for more tokens.
_FOR_EVERY_TOKEN = ("mpnet", "albert", "t5_encoder", "swin", "deberta_v2", "modernbert")
# Attention works inside windows there, so nothing that mixes tokens can be reached but by window.
_WINDOWED = ("swin",)
# Several MLPs with their weights in one tensor.
_EXPERTS = ("mixtral",)
# Their attention is no function that could be run again.
_WRITTEN_OUT = ("mpnet", "deberta_v2", "bloom", "falcon", "falcon_one_norm", "falcon_in_turn")

_SPECTRAL = {
    "schur, projected": Setting(),
    "schur, fresh": Setting({"start": "fresh", "limit": None}),
    "schur, T capped": Setting({"upper": 0.5, "eigenvalues": "square"}),
    "general, projected": Setting({"basis": "general"}),
    "general, fresh": Setting({"basis": "general", "start": "fresh", "limit": 2.0}),
    "orthogonal, projected": Setting({"basis": "orthogonal"}),
    "orthogonal, fresh, ψ by a sigmoid": Setting({"basis": "orthogonal", "start": "fresh", "eigenvalues": "sigmoid"}),
    "gram, projected": Setting({"basis": "gram"}),
    "gram, fresh": Setting({"basis": "gram", "start": "fresh"}),
    "gram, rescaled": Setting({"basis": "gram", "eigenvalues": "rescale"}),
}

_TO_PRE = ("torch_post", "torch_tokens_first", "own_encoder_post", "own_decoder_relative", "torch_decoder_post")
_TO_POST = ("torch_pre", "torch_causal", "own_vit", "own_decoder", "torch_decoder_pre")

_NOT_CAUSAL = tuple(host.name for host in HOSTS if not host.causal)

SETTINGS: dict[str, dict[str, Setting]] = {
    # Profiling passes give each model an ω of its own, so that here, where models are compared, it starts at one.
    "admin": {"ω of one": Setting({"start": "ones"}, refused_by=(*_NOT_POST_NORM, "albert", *_CROSSED))},
    "attnscale": {
        "ω by head": Setting({"omega": 0.5}, refused_by=_WINDOWED),
        "ω fixed": Setting({"omega": 0.5, "learn": "no"}, refused_by=_WINDOWED),
    },
    "b2t": {
        "paper": Setting({"weight": 0.5}, refused_by=_NOT_POST_NORM),
        "paper, norms dropped": Setting(
            {"weight": 0.5, "norm": "drop"}, refused_by=(*_NOT_POST_NORM, "torch_decoder_post")
        ),
        "official": Setting({"variant": "official"}, refused_by=_NOT_POST_NORM, as_loaded={"variant": "paper"}),
    },
    "centred": {
        "τ fixed": Setting({"tau": 0.8}, refused_by=_WINDOWED),
        "τ by head": Setting({"tau": 0.8, "learn": "head"}, refused_by=_WINDOWED),
    },
    "contranorm": {
        "paper": Setting({"scale": 0.5}),
        "official": Setting({"scale": 0.5, "variant": "official"}),
        "official, s by channel": Setting({"scale": 0.5, "variant": "official", "learn": "channel"}, neutral=False),
        "both sums, s by channel": Setting({"scale": 0.5, "dual": True, "learn": "channel"}, refused_by=_CAUSAL),
        "unit tokens, s positive": Setting({"scale": 0.5, "unit": True, "learn": "positive"}, neutral=False),
        "on the branch": Setting({"scale": 0.5, "place": "attention", "identity": True}),
    },
    "deepnorm": {
        "paper": Setting(refused_by=(*_NOT_POST_NORM, *_CROSSED), as_loaded={"init": "keep"}),
        "pretrained weights kept": Setting({"init": "keep"}, refused_by=(*_NOT_POST_NORM, *_CROSSED)),
    },
    "deescalate": {
        "attention": Setting({"tau": 0.7}),
        "residual, τ by layer": Setting({"tau": 0.7, "place": "residual", "learn": "layer"}),
        "norm, τ by channel": Setting({"tau": 0.7, "place": "norm", "learn": "channel"}, refused_by=_ONE_NORM),
        "values, τ by channel": Setting({"tau": 0.7, "place": "values", "learn": "channel"}, refused_by=_WINDOWED),
        "first token removed, with a prior": Setting({"tau": 0.7, "first": "remove", "prior": 1.5}),
    },
    "dlcl": {
        "paper": Setting(refused_by=("albert", *_WINDOWED)),
        "without norms": Setting({"norm": "none"}, refused_by=("albert", *_WINDOWED)),
    },
    "differential": {
        "paper": Setting(refused_by=_WRITTEN_OUT),
        "own map kept, λ by head": Setting(
            {"form": "kept", "lam": 0.3, "learn": "head", "norm": False}, refused_by=_WRITTEN_OUT
        ),
    },
    "featscale": {
        "paper": Setting({"dc": 0.2, "hc": 0.4}),
        "official": Setting({"dc": 0.2, "hc": 0.4, "variant": "official"}),
        "fixed": Setting({"dc": 0.2, "hc": 0.4, "learn": "no"}),
    },
    "gfsa": {
        "paper": Setting({"w0": 0.1, "start": 0.3}, refused_by=_WRITTEN_OUT),
        "official": Setting({"start": 0.3, "order": 3, "variant": "official"}, refused_by=_WRITTEN_OUT),
    },
    "laplacian": {"the first half": Setting()},
    "layernorm_scaling": {"1/√ℓ": Setting(refused_by=(*_POST_NORM, *_PERI_NORM, *_CROSSED))},
    "layerscale": {"γ by depth": Setting()},
    "mimetic": {
        "paper": Setting(as_loaded={"values": "keep", "queries": "keep"}),
        "values alone": Setting({"queries": "keep"}, as_loaded={"values": "keep"}),
    },
    "neutreno": {
        "λ fixed": Setting({"lam": 0.6}, refused_by=_WINDOWED),
        "λ by layer": Setting({"lam": 0.6, "learn": "layer"}, refused_by=_WINDOWED),
    },
    "norm_signs": {
        "flipped": Setting(refused_by=(*_POST_NORM, *_ONE_MORE, "modernbert", *_ONE_NORM)),
        "negative, both": Setting(
            {"sign": "negative", "norm": "both"}, refused_by=(*_POST_NORM, *_ONE_MORE, "modernbert")
        ),
    },
    "norm_place": {
        "to pre": Setting({"to": "pre"}, refused_by=_all_but(*_TO_PRE)),
        "to post": Setting({"to": "post"}, refused_by=_all_but(*_TO_POST)),
    },
    "pairnorm": {
        # Small, for what is left without the mean is blown up with all its rounding.
        "one size": Setting({"scale": 0.1}),
        "by token": Setting({"scale": 0.1, "scale_by": "token"}),
        "sized first, on the stream": Setting({"scale_by": "first", "place": "block"}),
    },
    "peri_norm": {"fresh norms": Setting(refused_by=(*_POST_NORM, *_PERI_NORM, *_CROSSED))},
    "registers": {"four": Setting({"std": 0.5}, refused_by=(*_CAUSAL, *_FOR_EVERY_TOKEN), unpadded=True)},
    "residual_scaling": {"1/√L": Setting()},
    "rezero": {
        "norms dropped": Setting({"start": 0.2}, refused_by=_CROSSED),
        "norms kept": Setting({"start": 0.2, "norm": "keep", "share": False}, refused_by=_CROSSED),
    },
    "shaped": {
        "by head": Setting({"alpha": 0.8, "gamma": 0.6}, refused_by=_WINDOWED),
        "fixed, without the way past": Setting(
            {"gamma": 0.5, "learn": "no", "skip": "drop"}, refused_by=(*_WINDOWED, *_PARALLEL)
        ),
    },
    "sharpen": _SPECTRAL,
    "skipinit": {
        "norms dropped": Setting({"start": 0.2}, refused_by=_CROSSED),
        "norms kept": Setting({"start": 0.2, "norm": "keep"}, refused_by=_CROSSED),
    },
    "sigma_reparam": {
        "paper": Setting(refused_by=_EXPERTS),
        "official": Setting({"variant": "official"}, refused_by=_EXPERTS),
    },
    "smooth": _SPECTRAL,
    "softdecay": {
        "paper": Setting(refused_by=_CAUSAL),
        "official": Setting({"variant": "official"}, refused_by=(*_NOT_POST_NORM, *_CAUSAL)),
    },
    "spa": {
        "uniform": Setting(refused_by=(*_NOT_CAUSAL, *_WRITTEN_OUT, *_WITH_ENCODER), as_loaded={"init": "keep"}),
        "exponential, weights kept, no way past": Setting(
            {"kind": "exponential", "init": "keep", "skip": "drop"},
            refused_by=(*_NOT_CAUSAL, *_WRITTEN_OUT, *_WITH_ENCODER, *_PARALLEL),
        ),
    },
    "talking_heads": {"with a bias": Setting(refused_by=(*_WRITTEN_OUT, "gemma2"))},
    "value_residual": {
        "halves": Setting(refused_by=_WINDOWED),
        "λ by value head": Setting({"learn": "head"}, refused_by=_WINDOWED),
    },
    "value_skipinit": {
        "by layer": Setting({"beta": 0.4}),
        "by head, without the way past": Setting({"beta": 0.4, "learn": "head", "skip": "drop"}, refused_by=_PARALLEL),
    },
}
