"""Whisper (Radford et al. 2022, arXiv 2212.04356): pre-norm encoder over frames of sound, decoder over text.

Two convolutions make one token of two frames. The encoder masks nothing: silence that fills a clip up takes part in it
but is not counted where an "attention_mask" says which frames are sound.
"""

from collections.abc import Mapping

from torch import nn

from unsmooth.models.block_parts import number
from unsmooth.models.host import TEXT, Cross, Host, Reads, Tap, register
from unsmooth.models.qkv_layouts import SEPARATE, Heads, read_cross_values
from unsmooth.models.value_projection import ValueProjection
from unsmooth.models.wiring import Wiring

FRAMES = Reads("input_features", "attention_mask", each=2)


def whisper_taps(block: nn.Module) -> Mapping[str, Tap]:
    """Branches end in their output projections: dropout is a function here, not a module."""
    taps = {
        "normed": Tap("self_attn_layer_norm", "output"),
        "attention": Tap("self_attn", "output"),
        "mid": Tap("final_layer_norm", "input"),
        "mlp": Tap("fc2", "output"),
    }
    return {**taps, "cross": Tap("encoder_attn", "output")} if _has_cross(block) else taps


def whisper_reads(block: nn.Module) -> Reads:
    """Sound for the encoder, text for the decoder."""
    return TEXT if _has_cross(block) else FRAMES


def whisper_wiring(block: nn.Module) -> Wiring:
    """Separate projections, as many key/value heads as query heads; cross-attention is left alone."""
    return Wiring(
        style="pre",
        heads=_heads(block, "self_attn"),
        attention="self_attn",
        value="self_attn.v_proj",
        layout=SEPARATE,
        output="self_attn.out_proj",
        norms=("self_attn_layer_norm", "final_layer_norm"),
        mlp=("fc1", "fc2"),
        dropout="dropout",
    )


def whisper_cross_values(block: nn.Module) -> ValueProjection:
    """Its values are what the encoder gives."""
    at = "encoder_attn"
    return read_cross_values(block, value=f"{at}.v_proj", output=f"{at}.out_proj", heads=_heads(block, at))


def _heads(block: nn.Module, attention: str) -> Heads:
    heads = number(block, f"{attention}.num_heads")
    return Heads(heads, heads, number(block, f"{attention}.head_dim"))


def _has_cross(block: nn.Module) -> bool:
    return hasattr(block, "encoder_attn")


register(
    Host(
        name="whisper",
        blocks=("WhisperEncoderLayer", "WhisperDecoderLayer"),
        taps=whisper_taps,
        example="openai/whisper-tiny, encoder and decoder",
        wiring=whisper_wiring,
        attention_module=lambda block: "self_attn",
        reads=whisper_reads,
        cross=Cross("encoder_attn", whisper_cross_values),
    ),
)
