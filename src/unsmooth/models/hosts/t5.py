"""T5 (Raffel et al. 2020, arXiv 1910.10683): pre-norm encoder and decoder of one kind of block, with RMS norms.

A block is a list of two layers, or of three in the decoder, where cross-attention stands in the middle.
"""

from collections.abc import Mapping

from torch import nn

from unsmooth.models.block_parts import number
from unsmooth.models.host import Cross, Host, Tap, register
from unsmooth.models.qkv_layouts import SEPARATE, Heads, read_cross_values
from unsmooth.models.value_projection import ValueProjection
from unsmooth.models.wiring import Wiring, linear_maps


def t5_taps(block: nn.Module) -> Mapping[str, Tap]:
    """Each layer adds the stream itself, after its dropout."""
    mlp = _mlp(block)
    taps = {
        "normed": Tap("layer.0.layer_norm", "output"),
        "attention": Tap("layer.0.dropout", "output"),
        "mid": Tap(mlp, "input"),
        "mlp": Tap(f"{mlp}.dropout", "output"),
    }
    return {**taps, "cross": Tap("layer.1.dropout", "output")} if _has_cross(block) else taps


def t5_wiring(block: nn.Module) -> Wiring:
    """The relative positions are in the map, not in the values; cross-attention, where there is some, is left alone."""
    return Wiring(
        style="pre",
        heads=_heads(block, "layer.0.SelfAttention"),
        attention="layer.0.SelfAttention",
        value="layer.0.SelfAttention.v",
        layout=SEPARATE,
        output="layer.0.SelfAttention.o",
        norms=("layer.0.layer_norm", f"{_mlp(block)}.layer_norm"),
        mlp=linear_maps(block, f"{_mlp(block)}.DenseReluDense"),
        causal=_has_cross(block),
        logit_scale=1.0,
    )


def t5_cross_values(block: nn.Module) -> ValueProjection:
    """Its values are what the encoder gives."""
    at = "layer.1.EncDecAttention"
    return read_cross_values(block, value=f"{at}.v", output=f"{at}.o", heads=_heads(block, at))


def _has_cross(block: nn.Module) -> bool:
    return bool(getattr(block, "is_decoder", False))


def _mlp(block: nn.Module) -> str:
    return "layer.2" if _has_cross(block) else "layer.1"


def _heads(block: nn.Module, attention: str) -> Heads:
    heads = number(block, f"{attention}.n_heads")
    return Heads(heads, heads, number(block, f"{attention}.key_value_proj_dim"))


register(
    Host(
        name="t5",
        blocks=("T5Block",),
        taps=t5_taps,
        example="google-t5/t5-small, google/flan-t5-base, encoder and decoder",
        wiring=t5_wiring,
        attention_module=lambda block: "layer.0.SelfAttention",
        cross=Cross("layer.1.EncDecAttention", t5_cross_values),
    ),
)
