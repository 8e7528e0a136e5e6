"""timm's Vision Transformers (ViT, DeiT, DINOv2, CLIP towers and others built of the same pre-norm block)."""

from collections.abc import Mapping

from torch import nn

from unsmooth.models.block_parts import declared, number, part, refuse
from unsmooth.models.host import IMAGE, Host, Tap, register
from unsmooth.models.qkv_layouts import CONCATENATED, Heads
from unsmooth.models.wiring import Wiring, linear_maps

# Whatever else stands in an attention module (differential attention, gates) changes what the values go through.
_KNOWN = {"qkv", "q_norm", "k_norm", "attn_drop", "norm", "proj", "proj_drop"}


def timm_vit_taps(block: nn.Module) -> Mapping[str, Tap]:
    """The branches end in stochastic depth, after LayerScale; either may be an identity."""
    return {
        "normed": Tap("norm1", "output"),
        "attention": Tap("drop_path1", "output"),
        "mid": Tap("norm2", "input"),
        "mlp": Tap("drop_path2", "output"),
    }


def timm_vit_wiring(block: nn.Module) -> Wiring:
    """`qkv` is [3, heads, head dim]; a LayerScale may end each branch; MLPs come gated and not."""
    attention = part(block, "attn")
    children = {name for name, _ in attention.named_children()}
    own = [name for name, _ in attention.named_parameters(recurse=False)]
    if not {"qkv", "proj"} <= children <= _KNOWN or own:
        got = f"{type(attention).__name__} with {', '.join(sorted(children) + own)}"
        raise refuse(block, "timm's plain Attention with fused qkv at 'attn'", got)
    if "norm" in children and not isinstance(part(block, "attn.norm"), nn.Identity):
        raise refuse(block, "nothing between values and output projection", "a norm (scale_attn_norm)")
    heads = number(block, "attn.num_heads")
    return Wiring(
        style="pre",
        heads=Heads(heads, heads, number(block, "attn.head_dim")),
        attention="attn",
        value="attn.qkv",
        layout=CONCATENATED,
        output="attn.proj",
        norms=("norm1", "norm2"),
        mlp=linear_maps(block, "mlp"),
        gains=None if isinstance(part(block, "ls1"), nn.Identity) else ("ls1.gamma", "ls2.gamma"),
    )


register(
    Host(
        name="timm_vit",
        # By its full name: many projects have a Block.
        blocks=("timm.models.vision_transformer.Block",),
        taps=timm_vit_taps,
        example="timm's vit_base_patch16_224, deit_tiny_patch16_224",
        prefix_tokens=lambda model: declared(model, "num_prefix_tokens"),
        wiring=timm_vit_wiring,
        reads=lambda block: IMAGE,
        attention_module=lambda block: "attn",
    ),
)
