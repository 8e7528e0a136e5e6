"""CLIP (Radford et al. 2021, arXiv 2103.00020): two pre-norm towers of one kind of block, for images and for texts.

The text tower is causal, and its last token stands for the whole text; the image tower has a class token in front.
"""

from collections.abc import Mapping
from dataclasses import replace

from torch import nn

from unsmooth.models.block_parts import number, part
from unsmooth.models.host import IMAGE, TEXT, Host, Reads, Tap, register
from unsmooth.models.qkv_layouts import SEPARATE, Heads
from unsmooth.models.wiring import Wiring


def tower_taps(block: nn.Module) -> Mapping[str, Tap]:
    """Both branches end in a module of their own."""
    return {
        "normed": Tap("layer_norm1", "output"),
        "attention": Tap("self_attn", "output"),
        "mid": Tap("layer_norm2", "input"),
        "mlp": Tap("mlp", "output"),
    }


def tower_wiring(block: nn.Module) -> Wiring:
    """Separate projections, as many key/value heads as query heads."""
    heads = number(block, "self_attn.num_heads")
    return Wiring(
        style="pre",
        heads=Heads(heads, heads, number(block, "self_attn.head_dim")),
        attention="self_attn",
        value="self_attn.v_proj",
        layout=SEPARATE,
        output="self_attn.out_proj",
        norms=("layer_norm1", "layer_norm2"),
        mlp=("mlp.fc1", "mlp.fc2"),
    )


def clip_wiring(block: nn.Module) -> Wiring:
    """The text tower is causal, which its attention is told in each call only."""
    return replace(tower_wiring(block), causal=tower_reads(block) == TEXT)


def tower_reads(block: nn.Module) -> Reads:
    """Pixels where the configuration of the tower is about images."""
    return IMAGE if hasattr(getattr(part(block, "self_attn"), "config", None), "patch_size") else TEXT


def class_tokens(model: nn.Module) -> int:
    """One where a part of the model has the class token's embedding."""
    return int(any(hasattr(module, "class_embedding") for module in model.modules()))


register(
    Host(
        name="clip",
        blocks=("CLIPEncoderLayer",),
        taps=tower_taps,
        example="openai/clip-vit-base-patch32, both towers",
        prefix_tokens=class_tokens,
        wiring=clip_wiring,
        attention_module=lambda block: "self_attn",
        reads=tower_reads,
    ),
)
