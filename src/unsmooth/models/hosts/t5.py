"""T5 (Raffel et al. 2020, arXiv 1910.10683): pre-norm encoder and decoder of one kind of block, with RMS norms.

A block is a list of two layers, or of three in the decoder, where cross-attention stands in the middle.
"""

from collections.abc import Mapping

from torch import nn

from unsmooth.models.block_parts import number
from unsmooth.models.host import HOSTS, Cross, Host, Tap
from unsmooth.models.qkv_layouts import SEPARATE, Heads, read_values
from unsmooth.models.value_projection import ValueProjection


def t5_taps(block: nn.Module) -> Mapping[str, Tap]:
    """Each layer adds the stream itself, after its dropout."""
    has_cross = bool(getattr(block, "is_decoder", False))
    mlp = "layer.2" if has_cross else "layer.1"
    taps = {
        "normed": Tap("layer.0.layer_norm", "output"),
        "attention": Tap("layer.0.dropout", "output"),
        "mid": Tap(mlp, "input"),
        "mlp": Tap(f"{mlp}.dropout", "output"),
    }
    return {**taps, "cross": Tap("layer.1.dropout", "output")} if has_cross else taps


def t5_values(block: nn.Module) -> ValueProjection:
    """The relative positions are in the map, not in the values."""
    return _values(block, "layer.0.SelfAttention", norm="layer.0.layer_norm")


def t5_cross_values(block: nn.Module) -> ValueProjection:
    """Its values are what the encoder gives, after the encoder's last norm."""
    return _values(block, "layer.1.EncDecAttention", norm=None)


def _values(block: nn.Module, attention: str, norm: str | None) -> ValueProjection:
    heads = number(block, f"{attention}.n_heads")
    return read_values(
        block,
        value=f"{attention}.v",
        output=f"{attention}.o",
        layout=SEPARATE,
        heads=Heads(heads, heads, number(block, f"{attention}.key_value_proj_dim")),
        place="pre",
        norm=norm,
    )


HOSTS.add(
    "t5",
    Host(
        name="t5",
        blocks=("T5Block",),
        taps=t5_taps,
        example="google-t5/t5-small, google/flan-t5-base, encoder and decoder",
        value_projection=t5_values,
        attention_module=lambda block: "layer.0.SelfAttention",
        cross=Cross("layer.1.EncDecAttention", t5_cross_values),
    ),
)
