"""Configurations of transformers made tiny: every width, depth, vocabulary and picture by the name of its field."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any

WIDTH, HEADS, HEAD_DIM, KEY_HEADS, INNER, VOCABULARY, PICTURE, PATCH = 32, 4, 8, 2, 48, 128, 32, 8
LAYERS, MOST_LAYERS = 2, 4
# Ids of special tokens lie below, those of batches at or above.
FIRST_FREE_ID = 70

Rule = Callable[[int], int]


def _at_most(size: int) -> Rule:
    return lambda value: min(value, size)


def _exactly(size: int) -> Rule:
    return lambda value: size if value > 0 else value


# The first pattern that matches the whole name of a field of whole numbers says what becomes of it.
RULES: tuple[tuple[str, Rule], ...] = (
    (r"(num_)?(hidden_|encoder_|decoder_|transformer_|attention_|text_|vision_|speech_encoder_|memory_attention_)*"
     r"(num_)?(layers?|n_layers?|depth|blocks)", _exactly(LAYERS)),
    (r"n_layers?|(encoder|decoder)_(layers|depth)|num_(encoder|decoder)_(layers|blocks)|(resampler|predictor|entity"
     r"|memory_attention|cross|relational|r|x|l)_(depth|num_layers|layers|num_hidden_layers)|num_block(s|_layers)?|"
     r"(decoder|encoder|text|pooling|qformer|mask_decoder|predictor|vision|visual|patcher|detr|generator|dit)"
     r"_num(_hidden)?_layers|num_perceiver_layers|num_(hidden|attention)_(layers|blocks)_?.*|depths?|perceiver_depth"
     , _exactly(LAYERS)),
    (r"num_kv_shared_layers", lambda value: 0),
    (r"mamba_n_heads|mamba_num_heads|mamba_heads", _exactly(8)),
    (r"first_k_dense_replace|num_dense_layers|decoder_sparse_step|moe_layer_start_index", _at_most(1)),
    (r"(num_|n_)?(routed_|local_|moe_|fine_)?(num_)?experts", _exactly(4)),
    (r"(num_experts_per_tok|moe_topk|moe_top_?k|num_experts_per_token|top_k_experts|moe_k|top_k)", _exactly(2)),
    (r"n_group|topk_group|num_expert_group|n_groups_moe", _at_most(1)),
    (r".*_kv_heads|.*num_key_value_heads|multi_query_group_num|num_kv_heads", _at_most(KEY_HEADS)),
    (r"linear_num_key_heads", _exactly(KEY_HEADS)),
    (r"index_topk", _exactly(4)),
    (r".*attention_heads|(num_|n_)?(attention_)?heads?|.*_n_heads?|.*num_heads|.*linear_num_(value_)?heads",
     _at_most(HEADS)),
    (r"qk_nope_head_dim|qk_rope_head_dim|v_head_dim|.*head_dim|d_kv|dim_head|attention_head_size|.*_d_head"
     r"|.*attention_dim_head|kv_channels|rotary_dim|head_size", _exactly(HEAD_DIM)),
    (r"qk_head_dim", _exactly(2 * HEAD_DIM)),
    (r"(kv|q|o|.*)_lora_rank|.*_rank|.*_latent_size", _at_most(16)),
    (r".*(intermediate_size|ffn_dim|mlp_dim|ffn_hidden_size|inner_dim|feedforward|d_ff|d_inner|mlp_hidden_size"
     r"|intermediate_dim|n_inner|ff_dim|dim_ff|ffn_size)", _exactly(INNER)),
    (r".*vocab_size(_per_layer_input)?|n_words", _at_most(VOCABULARY)),
    (r"(crop_|pretrain_)?image_size|img_size|input_resolution", _exactly(PICTURE)),
    (r"patch_size", lambda value: value if value <= 4 else PATCH),
    (r"(max_source_positions|max_target_positions)", _at_most(64)),
    (r"max_position_embeddings|n_positions|max_2d_position_embeddings|max_.*positions?|max_seq_len(gth)?",
     _at_most(256)),
    (r"window_size", lambda value: 32 if value >= 64 else min(value, 8)),
    (r"upsample_groups", _at_most(WIDTH)),
    (r"(sliding_window|attention_chunk_size|local_attention|attention_window)", _at_most(8)),
    (r"num_queries|num_query_tokens|.*num_latents|num_object_queries", _at_most(6)),
    (r"num_mel_bins|feature_size|n_mels|num_mel_filters", _at_most(16)),
    (r".*codebook_size|num_embeddings", _at_most(16)),
    (r".*codebook_dim", _at_most(WIDTH)),
    (r"n_window|n_window_infer", _at_most(16)),
    (r"mamba_d_state|state_size|ssm_state_size|d_state", _at_most(8)),
    (r"mamba_chunk_size|lsh_attn_chunk_length|local_attn_chunk_length", _exactly(8)),
    (r"num_pos_feats", _at_most(WIDTH // 2)),
    (r"base_channels|num_filters|decoder_hidden_size_audio", _at_most(32)),
    (r"(num_)?(conv_pos_embedding_groups|groups)", _at_most(4)),
    (r"num_conv_pos_embeddings", _at_most(5)),
    (r"query_pre_attn_scalar", _exactly(HEAD_DIM)),
    (r".*(hidden_size|hidden_dim|embed_dim|embedding_size|embedding_dim|d_model|d_embed|n_embd|projection_dim|out_hidden_size"
     r"|output_dim|output_size|hidden_dimension|encoder_dim|feature_dim|fusion_dim|latent_dim|hidden_channels"
     r"|projection_size|output_channels|mask_input_channels|pooler_output_size|channels_dim|dim_model|emb_dim|model_dim|lru_width|text_dim|vision_dim|model_size"
     r"|hidden_sizes|projector_dim|xvector_output_dim|conv_hidden|context_dim)", _at_most(WIDTH)),
    (r"dim|width|lru_width|q_dim|kv_dim|hidden_size.*", _at_most(WIDTH)),
)  # fmt: skip


def shrunk_number(field: str, value: int) -> int:
    """What becomes of one whole number, by the name of its field; itself where no rule knows the name."""
    for pattern, rule in RULES:
        if re.fullmatch(pattern, field):
            return rule(value)
    return value


def _shrunk_list(field: str, values: list[int]) -> list[int]:
    """A list with one number for each stage: depths become two, widths and heads keep their ratios."""
    if re.fullmatch(r"depths|num_layers|layers|num_hidden_layers|block_sizes|blocks_per_stage|stage_layers", field):
        return [min(value, LAYERS) for value in values]
    if re.search(r"(hidden_sizes|embed_dims|embed_dim|dims|_dim_per_stage)$", field) and min(values) >= HEAD_DIM:
        heads = [max(1, round(value / min(values))) for value in values]
        return [HEAD_DIM * count for count in heads]
    if re.search(r"(heads|heads_per_stage)$", field):
        return [max(1, round(value / min(values))) for value in values]
    if field in {"conv_dim", "tdnn_dim"}:
        return [WIDTH for _ in values]
    if field in {"image_size", "input_size"}:
        return [min(value, PICTURE) for value in values]
    return values


# Where a class says None and some code of its own cannot do without.
IF_NONE = {"num_key_value_heads": HEADS, "head_dim": HEAD_DIM, "num_experts_per_tok": 2}


class Tokens:
    """New ids for special tokens: the same old id is the same new one in every part of a configuration."""

    def __init__(self) -> None:
        self.new: dict[int, int] = {}

    def of(self, value: int) -> int:
        """An id inside the tiny vocabulary."""
        if 0 <= value < 20 or value < 0:
            return value
        return self.new.setdefault(value, 20 + len(self.new))


def is_token(field: str) -> bool:
    """Whether a field holds the id of a token."""
    return bool(re.search(r"(token_ids?|token_index|_token|_idx|token_ids)$", field)) and "num" not in field


def _layers_kept(default: Any) -> tuple[int | None, list[int]]:
    """How many layers a configuration has, and which of them stand for all kinds that it mixes."""
    wanted = inspect.signature(type(default).__init__).parameters
    count = next(
        (
            value
            for name in ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
            if name in wanted and isinstance(value := _held(default, name), int)
        ),
        None,
    )
    if not count:
        return None, []
    kept: list[int] = []
    seen = set()
    for field in ("layer_types", "layers_block_type", "mlp_layer_types"):
        kinds = _held(default, field)
        if isinstance(kinds, list) and len(kinds) == count:
            for place, kind in enumerate(kinds):
                if (field, kind) not in seen and len(kept) < MOST_LAYERS:
                    seen.add((field, kind))
                    kept.append(place)
    kept = sorted(set(kept))
    for place in range(count):
        if len(kept) >= LAYERS:
            break
        if place not in kept:
            kept = sorted([*kept, place])
    return count, kept


def small(
    kind: type, tokens: Tokens | None = None, overrides: Mapping[str, Any] | None = None, default: Any = None
) -> Any:
    """A tiny configuration of one kind.

    Args:
        kind: Class of the configuration.
        tokens: New ids given so far, where this is part of a larger one.
        overrides: Fields said by hand; those of parts in a mapping of their own.
        default: What the class gives by itself, where it is already there.
    """
    tokens = tokens or Tokens()
    overrides = dict(overrides or {})
    plain = kind()
    default = plain if default is None else default
    parts = getattr(kind, "sub_configs", None) or {}
    wanted = inspect.signature(kind.__init__).parameters
    count, kept = _layers_kept(default)
    made: dict[str, Any] = {}
    for field, parameter in wanted.items():
        if field in {"self", "kwargs", "transformers_version", "id2label", "label2id", "dtype"}:
            continue
        value = _held(default, field)
        if field in IF_NONE and (value is None or _is_one_for_each_head(field, value, default)):
            made[field] = IF_NONE[field]
            continue
        if field in parts or hasattr(value, "sub_configs"):
            if value is not None and hasattr(value, "sub_configs"):
                made[field] = small(type(value), tokens, overrides.pop(field, None), value)
            continue
        if field == "rope_parameters" and isinstance(value, dict):
            made[field] = _rope(value, "mrope_section" in (getattr(kind, "ignore_keys_at_rope_validation", None) or ()))
            continue
        if isinstance(value, list | tuple) and len(value) == count and count not in (None, 3) and count > len(kept):
            made[field] = [value[place] for place in kept]
            if parameter.default is None and not isinstance(value[0], str):
                del made[field]
            continue
        new = (
            _places(value, len(kept))
            if INDICES.search(field) and (kept or field != "out_indices")
            else _shrunk(field, value, tokens)
        )
        if field == "embed_dim" and isinstance(value, int) and _staged_heads(default):
            new = HEAD_DIM * _shrunk_list("heads", _staged_heads(default))[0]
        if default is not plain and not _is_same(value, _held(plain, field)):
            made[field] = new
            continue
        if parameter.default is None and field not in {"layer_types", "layers_block_type"} and not is_token(field):
            # What a class works out by itself it works out anew.
            continue
        if new is not value:
            made[field] = new
    if _staged_heads(default) and isinstance(_held(default, "window_size"), int):
        # The last of four stages is one window.
        made |= {"window_size": 2} | ({"image_size": 2 * PICTURE} if "image_size" in wanted else {})
    backbone = _held(default, "backbone_config")
    if "backbone_config" in wanted and getattr(backbone, "model_type", "timm_backbone") == "timm_backbone":
        made |= {"backbone_config": _tiny_resnet()}
        made |= {field: value for field, value in (("use_timm_backbone", False), ("backbone", None)) if field in wanted}
    if default is not plain and not count and isinstance(_held(default, "out_indices"), list):
        made["out_indices"] = list(default.out_indices)
    for name in ("num_hidden_layers", "n_layer", "num_layers", "n_layers"):
        if name in made and count and isinstance(made[name], int) and made[name] == LAYERS:
            made[name] = len(kept)
    made.update(overrides)
    return kind(**made)


# Fields that count layers.
INDICES = re.compile(r"(indices|indexes|_idxs|hook_ids|extract_layers|feature_layers?|layer_ids|target_layers)$")


def _places(value: Any, layers: int) -> Any:
    """Places of layers, brought inside a smaller depth; those counted from the end stay."""
    if isinstance(value, bool) or value is None or value == []:
        return value
    layers = layers or LAYERS
    if isinstance(value, int):
        return value if -layers <= value < layers else layers - 1
    if isinstance(value, list | tuple) and all(isinstance(one, int) for one in value):
        if all(-layers <= one < layers for one in value):
            return value
        steps = max(len(value) - 1, 1)
        return [round(at * (layers - 1) / steps) for at in range(len(value))]
    return value


def _staged_heads(default: Any) -> list[int] | None:
    """Heads of each stage, where there are stages."""
    for field in ("num_heads", "num_attention_heads", "encoder_num_heads"):
        heads = _held(default, field)
        if isinstance(heads, list | tuple):
            return list(heads)
    return None


def _is_same(one: Any, other: Any) -> bool:
    return type(one) is type(other) and one == other


def _tiny_resnet() -> Any:
    """A convolution net of four stages, where a model would fetch one."""
    from transformers import ResNetConfig

    return ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 8, 16, 16], depths=[1, 1, 1, 1], out_features=["stage2", "stage3", "stage4"]
    )


def _held(config: Any, field: str) -> Any:
    """What a configuration holds; None too where that differs by layer."""
    try:
        return getattr(config, field, None)
    except Exception:
        return None


def _is_one_for_each_head(field: str, value: Any, default: Any) -> bool:
    """Whether keys and values have as many heads as queries."""
    return field.endswith("key_value_heads") and value == _held(default, "num_attention_heads")


def _rope(value: dict[str, Any], has_sections: bool) -> dict[str, Any]:
    """Sections of rotary positions that add up to half a tiny head."""
    if any(isinstance(inner, dict) for inner in value.values()):
        return {name: _rope(inner, has_sections) if isinstance(inner, dict) else inner for name, inner in value.items()}
    new = dict(value)
    if has_sections or "mrope_section" in new:
        new["mrope_section"] = [HEAD_DIM // 2 - 2, 1, 1]
    return new


def _shrunk(field: str, value: Any, tokens: Tokens) -> Any:
    """One field; itself where there is nothing to do."""
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):
        return tokens.of(value) if is_token(field) else shrunk_number(field, value)
    if (
        isinstance(value, list | tuple)
        and value
        and all(isinstance(one, int) and not isinstance(one, bool) for one in value)
    ):
        if is_token(field):
            return [tokens.of(one) for one in value]
        new = _shrunk_list(field, list(value))
        return value if new == list(value) else new
    if isinstance(value, dict) and value and all(not isinstance(one, dict) for one in value.values()):
        return value
    return value
