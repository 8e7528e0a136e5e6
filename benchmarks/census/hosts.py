"""The architectures of transformers that the census asks about, and what a few of them need that no rule gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from benchmarks.census.batches import DECODER_TOKENS, SEQUENCES, TOKENS, Batch, Maker, batch_for, look_up, parts_of
from benchmarks.census.build import Made, build

_SERIES = {"prediction_length": 4, "context_length": 14, "lags_sequence": [1, 2], "num_time_features": 1}
_SECTIONS = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1]}
_SHUFFLED = {"intermediate_size": 128, "projector_input_dim": 32, "projector_output_dim": 32}
_TILED = {"intermediate_layers_indices": [0], "num_global_layers": 2, "vision_output_dim": 64}
_TURNED = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2]}
_POSED = {"image_size": [64, 32], "patch_size": [16, 16], "part_features": 8, "num_experts": 1}
_COMPASS = {"rope_parameters": {"full_attention": _SECTIONS, "sliding_attention": _SECTIONS}}
_FOUR_STAGES = {"backbone_config": {"num_hidden_layers": 4, "out_indices": [1, 2, 3, 4], "out_features": None}}
_HIERA = {
    "hidden_size": 8, "embed_dim_per_stage": [8, 16, 32, 64], "num_attention_heads_per_stage": [1, 2, 4, 8],
    "blocks_per_stage": [1, 2, 2, 1], "image_size": [64, 64], "window_size_per_stage": [8, 4, 4, 4],
    "global_attention_blocks": [3], "window_positional_embedding_background_size": [2, 2],
}  # fmt: skip
_HIERA_NECK = {"backbone_channel_list": [64, 32, 16, 8], "backbone_feature_sizes": [[16, 16], [8, 8], [4, 4]]}
# Of the layers that see everything, which no field of the built configuration holds.
_GLOBAL: dict[str, Any] = {"global_head_dim": 8}
_WIDE = {"hidden_size": 64}

# Fields of configurations said by hand, by model type.
FIELDS: dict[str, dict[str, Any]] = {
    "autoformer": _SERIES,
    "bamba": {"attn_layer_indices": [1]},
    "blip-2": {"image_token_index": 21},
    "bros": {**_WIDE, "dim_bbox": 8},
    "clap_audio_model": {"spec_size": 64, "num_mel_bins": 16},
    "clap": {"audio_config": {"spec_size": 64, "num_mel_bins": 16}},
    "bridgetower": {**_WIDE, "text_config": _WIDE, "vision_config": _WIDE},
    "bridgetower_vision_model": _WIDE,
    "chameleon": {"vocabulary_map": {"<image>": 21}},
    "dbrx": {"attn_config": {"rope_theta": 10000.0, "clip_qkv": 8}},
    "deepseek_ocr2": {"text_config": {"mlp_layer_types": ["dense", "sparse"]}},
    "deepseek_ocr2_text": {"mlp_layer_types": ["dense", "sparse"]},
    "diffusion_gemma_text": {"num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 16, **_GLOBAL},
    "diffusion_gemma": {"text_config": {"num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 16, **_GLOBAL}},
    "embedding_gemma2_text": _GLOBAL,
    "embedding_gemma2": {"text_config": _GLOBAL},
    "gemma4_text": _GLOBAL,
    "gemma4": {"text_config": _GLOBAL},
    "gemma4_unified_text": _GLOBAL,
    "gemma4_unified": {"text_config": _GLOBAL},
    "depth_anything": _FOUR_STAGES,
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2},
    "emu3": {"vocabulary_map": {"<image>": 21}},
    "esm": {"vocab_size": 128, "pad_token_id": 1, "mask_token_id": 32},
    "gemma3n_text": {"num_kv_shared_layers": 0},
    "glm4v_moe": {"text_config": {"head_dim": 16}},
    "glm4v_moe_text": {"head_dim": 16},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "num_layers": 2, "window_size": 4},
    "granite_speech5_encoder": {"num_hidden_layers": 3, "subsample_layers": [0]},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"]},
    "informer": _SERIES,
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2, "expert_layer_offset": 1},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_hidden_layers": 2},
    "lilt": {"hidden_size": 48},
    "llama4": {"vision_config": _SHUFFLED},
    "llama4_vision_model": _SHUFFLED,
    "mask2former": {"feature_size": 32, "mask_feature_size": 32},
    "moonshine_streaming": {"num_key_value_heads": 4},
    "zamba": {"num_hidden_layers": 4, "layers_block_type": ["mamba", "hybrid", "mamba", "hybrid"]},
    "mamba2": {"num_heads": 8},
    "nemotron": {"num_key_value_heads": 2},
    "paddleocr_vl": {"text_config": {"rope_parameters": _SECTIONS}},
    "paddleocr_vl_text": {"rope_parameters": _SECTIONS},
    "prompt_depth_anything": _FOUR_STAGES,
    "reformer": {"axial_pos_embds_dim": [8, 24], "axial_pos_shape": [4, 8], "attn_layers": ["local", "lsh"]},
    "sam2": {"vision_config": {"backbone_config": _HIERA, **_HIERA_NECK}, "prompt_encoder_config": {"image_size": 64}},
    "sam2_hiera_det_model": _HIERA,
    "sam2_vision_model": {"backbone_config": _HIERA, **_HIERA_NECK},
    "seggpt": {"num_hidden_layers": 4, "merge_index": 0, "intermediate_hidden_state_indices": [1, 2, 3, 3]},
    "speech_to_text": {"conv_channels": 32},
    "step3p5": {"sliding_window": 8},
    "time_series_transformer": _SERIES,
    "xmod": {"default_language": "en_XX"},
    "levit": {"patch_size": 16, "image_size": 64, "hidden_sizes": [32, 48, 64], "num_attention_heads": [2, 3, 4]},
    "lw_detr_vit": {"image_size": 64},
    "lw_detr": {"backbone_config": {"image_size": 64}},
    "gemma3": {"mm_tokens_per_image": 4},
    "shieldgemma2": {"mm_tokens_per_image": 4},
    "neomme": {"text_config": {"head_dim": 16}},
    "neomme_text": {"head_dim": 16},
    "mllama_vision_model": _TILED,
    "mllama": {"vision_config": _TILED},
    "ernie4_5_vl_moe_text": {"rope_parameters": _TURNED},
    "ernie4_5_vl_moe": {"text_config": {"rope_parameters": _TURNED}},
    "pvt": {"num_encoder_blocks": 4},
    "recurrent_gemma": {"num_hidden_layers": 3},
    "clvp_encoder": {"hidden_size": 128},
    "clvp": {"text_config": {"hidden_size": 128}, "speech_config": {"hidden_size": 128}},
    "xclip_vision_model": {"num_frames": 3},
    "vitpose_backbone": _POSED,
    "vits": {"upsample_initial_channel": 32},
    "vitpose": {"backbone_config": {**_POSED, "out_indices": [2], "out_features": None}},
    "cohere_compass_text": _COMPASS,
    "cohere_compass": {"text_config": _COMPASS},
    "zoedepth": _FOUR_STAGES,
    "chmv2": _FOUR_STAGES,
    "tipsv2_dpt": _FOUR_STAGES,
    "glm5_next_text": {"index_topk": 16},
    "glm5_next": {"text_config": {"index_topk": 16}},
    "rt_detr": {"decoder_in_channels": [32, 32, 32]},
    "rt_detr_v2": {"decoder_in_channels": [32, 32, 32]},
    "d_fine": {"decoder_in_channels": [32, 32, 32], "backbone_config": {"hidden_sizes": [128, 512, 1024, 2048]}},
    "instructblip": {"image_token_index": 21},
    "instructblipvideo": {"video_token_index": 21},
    "perceiver": {"d_latents": 32, "self_attends_per_block": 3, "num_blocks": 1, "num_self_attention_heads": 4},
    "zaya": {"num_experts_per_tok": 1},
}
# The class to build, where the first one is not it.
CLASSES: dict[str, str] = {
    "pop2piano": "Pop2PianoForConditionalGeneration",
    "speecht5": "SpeechT5ForSpeechToText",
}


def _series(maker: Maker) -> Batch:
    past = 14 + 2
    return {
        "past_values": maker.normal(SEQUENCES, past).abs(),
        "past_time_features": maker.normal(SEQUENCES, past, 1),
        "past_observed_mask": torch.ones(SEQUENCES, past),
        "future_values": maker.normal(SEQUENCES, 4).abs(),
        "future_time_features": maker.normal(SEQUENCES, 4, 1),
    }


def _past_values(maker: Maker) -> Batch:
    config = maker.config
    length = getattr(config, "context_length", 32)
    channels = getattr(config, "num_input_channels", None)
    shape = (SEQUENCES, length, channels) if channels else (SEQUENCES, length)
    batch: Batch = {"past_values": maker.normal(*shape)}
    if "past_values_padding" in maker.fields:
        batch["past_values_padding"] = torch.zeros(SEQUENCES, length, dtype=torch.long)
    if "freq" in maker.fields:
        batch["freq"] = torch.zeros(SEQUENCES, 1, dtype=torch.long)
    return batch


def _flattened(maker: Maker) -> Batch:
    vision = next((one for one in parts_of(maker.config) if hasattr(one, "patch_embed_hidden_size")), maker.config)
    patch = getattr(vision, "patch_size", 16)
    # transformers reads the width of patches from a field of its own.
    width = getattr(vision, "patch_embed_hidden_size", 3 * patch * patch)
    patches = torch.cat([torch.ones(SEQUENCES, 12, 2), maker.normal(SEQUENCES, 12, width)], -1)
    places = torch.arange(12)
    patches[:, :, 0], patches[:, :, 1] = (places // 4 + 1).float(), (places % 4 + 1).float()
    return {"flattened_patches": patches, "attention_mask": maker.mask(12).float(), **maker.decoder()}


def _lxmert(maker: Maker) -> Batch:
    return {**maker.text(), "visual_feats": maker.normal(SEQUENCES, 5, maker.config.visual_feat_dim),
            "visual_pos": maker.normal(SEQUENCES, 5, 4).sigmoid()}  # fmt: skip


def _decisions(maker: Maker) -> Batch:
    config = maker.config
    return {
        "states": maker.normal(SEQUENCES, 6, config.state_dim), "actions": maker.normal(SEQUENCES, 6, config.act_dim),
        "rewards": maker.normal(SEQUENCES, 6, 1), "returns_to_go": maker.normal(SEQUENCES, 6, 1),
        "timesteps": torch.arange(6).repeat(SEQUENCES, 1), "attention_mask": torch.ones(SEQUENCES, 6, dtype=torch.long),
    }  # fmt: skip


def _codebooks(maker: Maker) -> Batch:
    codebooks = look_up(maker.config, "num_codebooks", default=4)
    ids = torch.randint(0, 15, (SEQUENCES * codebooks, DECODER_TOKENS), generator=maker.random)
    return {**maker.text(), "decoder_input_ids": ids}


def _with_qformer(maker: Maker) -> Batch:
    token = look_up(maker.config, "image_token_index", "image_token_id", "video_token_index", default=21)
    queries = look_up(maker.config, "num_query_tokens", default=6)
    frames = 4 if "video" in maker.config.model_type else 0
    maker.placed = {token: queries * max(frames, 1)}
    batch = maker.text()
    if "qformer_input_ids" in maker.fields:
        batch["qformer_input_ids"] = maker.ids(5)
        batch["qformer_attention_mask"] = maker.mask(5)
    size = maker.image_size()
    shape = (SEQUENCES, frames, 3, *size) if frames else (SEQUENCES, 3, *size)
    return {**batch, "pixel_values": maker.normal(*shape)}


def _kosmos(maker: Maker) -> Batch:
    latents = look_up(maker.config, "latent_query_num", default=64)
    width = latents + maker.tokens
    where = torch.zeros(SEQUENCES, width, dtype=torch.long)
    where[:, 1 : 1 + latents] = 1
    return {"pixel_values": maker.normal(SEQUENCES, 3, *maker.image_size()), "input_ids": maker.ids(width),
            "attention_mask": maker.mask(width), "image_embeds_position_mask": where}  # fmt: skip


def _idefics(maker: Maker) -> Batch:
    text = maker.text()
    return {**text, "pixel_values": maker.normal(SEQUENCES, 1, 3, *maker.image_size()),
            "image_attention_mask": torch.ones(SEQUENCES, text["input_ids"].shape[1], 1, dtype=torch.long)}  # fmt: skip


def _states(maker: Maker) -> Batch:
    width = look_up(maker.config, "encoder_hidden_size", default=32)
    own = look_up(maker.config, "hidden_size", default=32)
    batch = {
        "query_embeds": maker.normal(SEQUENCES, 6, own),
        "encoder_hidden_states": maker.normal(SEQUENCES, 9, width),
    }
    return batch | ({"input_ids": maker.ids(5)} if "input_ids" in maker.fields else {})


def _context(maker: Maker) -> Batch:
    width = look_up(maker.config, "hidden_size", default=32)
    return {"context": maker.normal(SEQUENCES, 9, width), "attention_mask": torch.ones(SEQUENCES, 9, dtype=torch.long)}


def _task(maker: Maker) -> Batch:
    length = look_up(maker.config, "task_seq_len", default=77)
    return {"pixel_values": maker.normal(SEQUENCES, 3, 64, 64), "task_inputs": maker.normal(SEQUENCES, length)}


def _speech(maker: Maker) -> Batch:
    width = look_up(maker.config, "input_size", default=80)
    return {"hidden_states": maker.normal(SEQUENCES, 64, width), "mask": torch.ones(SEQUENCES, 64, dtype=torch.bool)}


def _packed_sound(maker: Maker) -> Batch:
    bins = look_up(maker.config, "num_mel_bins", default=16)
    window = 2 * look_up(maker.config, "n_window", default=50)
    lengths = torch.tensor([window] * SEQUENCES)
    return {"input_features": maker.normal(bins, window * SEQUENCES), "feature_lens": lengths}


def _stacked_frames(maker: Maker) -> Batch:
    width = look_up(maker.config, "num_mel_bins", default=16) * 7
    return {"input_features": maker.normal(SEQUENCES, 64, width), "input_features_mask": maker.lengths_mask(64)}


def _grid_of_frames(maker: Maker) -> Batch:
    batch = next(iter(maker.packed_pixels()))
    return {**batch, "merge_sizes": torch.ones(SEQUENCES, dtype=torch.long)}


def _images(maker: Maker) -> Batch:
    return {"image": maker.normal(SEQUENCES, 3, *maker.image_size()), "image_mask": None}


def _code_frames(maker: Maker) -> Batch:
    channels = look_up(maker.config, "num_channels", default=9)
    ids = torch.randint(0, 15, (SEQUENCES, DECODER_TOKENS, channels), generator=maker.random)
    return {**maker.text(), "decoder_input_ids": ids}


def _prompted(maker: Maker) -> Batch:
    height, width = maker.image_size()
    return {
        name: maker.normal(SEQUENCES, 3, height, width)
        for name in ("pixel_values", "prompt_pixel_values", "prompt_masks")
    }


def _tiles(maker: Maker) -> Batch:
    return {"pixel_values": maker.normal(SEQUENCES, 1, 4, 3, *maker.image_size()),
            "aspect_ratio_ids": torch.ones(SEQUENCES, 1, dtype=torch.long),
            "aspect_ratio_mask": torch.tensor([[[1, 1, 0, 0]]] * SEQUENCES)}  # fmt: skip


def _text_and_tiles(maker: Maker) -> Batch:
    text = maker.text()
    width = text["input_ids"].shape[1]
    return {**text, **_tiles(maker), "cross_attention_mask": torch.ones(SEQUENCES, width, 1, 4, dtype=torch.long)}


def _two_pictures(maker: Maker) -> Batch:
    return {"pixel_values": maker.normal(SEQUENCES, 2, 3, 64, 64)}


# Batches made by hand.
BATCHES: dict[str, Callable[[Maker], Batch]] = {
    "autoformer": _series,
    "blip-2": _with_qformer,
    "blip_2_qformer": _states,
    "decision_transformer": _decisions,
    "fun_asr_nano_encoder": _stacked_frames,
    "idefics": _idefics,
    "informer": _series,
    "instructblip": _with_qformer,
    "instructblip_qformer": _states,
    "instructblipvideo": _with_qformer,
    "instructblipvideo_qformer": _states,
    "idefics2_perceiver": _context,
    "oneformer": _task,
    "phi4_multimodal_audio": _speech,
    "kosmos_2_5_vision_model": _flattened,
    "kosmos-2": _kosmos,
    "lightglue": _two_pictures,
    "lxmert": _lxmert,
    "musicgen": _codebooks,
    "musicgen_melody": _codebooks,
    "patchtsmixer": _past_values,
    "patchtst": _past_values,
    "perceiver": lambda maker: {"inputs": maker.normal(SEQUENCES, TOKENS, maker.config.d_model)},
    "pix2struct": _flattened,
    "pix2struct_vision_model": _flattened,
    "bridgetower_vision_model": _images,
    "dia": _code_frames,
    "mllama": _text_and_tiles,
    "mllama_vision_model": _tiles,
    "qwen2_5_omni_audio_encoder": _packed_sound,
    "qwen3_asr_encoder": _packed_sound,
    "qwen3_omni_moe_audio_encoder": _packed_sound,
    "seggpt": _prompted,
    "superglue": _two_pictures,
    "time_series_transformer": _series,
    "video_llama_3_vision": _grid_of_frames,
    "timesfm": _past_values,
    "timesfm2_5": _past_values,
}


def names() -> list[str]:
    """All model types of the installed transformers."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES
    from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

    return sorted({*CONFIG_MAPPING_NAMES, *MODEL_MAPPING_NAMES})


def made(model_type: str) -> Made:
    """A tiny model of one type and a batch for it."""
    model = build(model_type, FIELDS.get(model_type), CLASSES.get(model_type))
    batch = batch_for(model, BATCHES.get(model_type))
    return Made(model, batch, dict(batch))
