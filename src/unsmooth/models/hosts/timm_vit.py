"""timm's Vision Transformers (ViT, DeiT, DINOv2, CLIP towers and others built of the same pre-norm block)."""

from collections.abc import Mapping

from torch import Tensor, nn

from unsmooth.models.block_parts import declared, number, part, readable, refuse
from unsmooth.models.host import HOSTS, Host, Tap
from unsmooth.models.qkv_layouts import CONCATENATED, Heads, read_values
from unsmooth.models.stored import stored
from unsmooth.models.value_projection import ValueProjection

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


def timm_vit_values(block: nn.Module) -> ValueProjection:
    """`qkv` is [3, heads, head dim]; LayerScale is the gain."""
    attention = part(block, "attn")
    children = {name for name, _ in attention.named_children()}
    own = [name for name, _ in attention.named_parameters(recurse=False)]
    if not {"qkv", "proj"} <= children <= _KNOWN or own:
        got = f"{type(attention).__name__} with {', '.join(sorted(children) + own)}"
        raise refuse(block, "timm's plain Attention with fused qkv at 'attn'", got)
    if "norm" in children and not isinstance(part(block, "attn.norm"), nn.Identity):
        raise refuse(block, "nothing between values and output projection", "a norm (scale_attn_norm)")
    heads = number(block, "attn.num_heads")
    return read_values(
        block,
        value="attn.qkv",
        output="attn.proj",
        layout=CONCATENATED,
        heads=Heads(heads, heads, number(block, "attn.head_dim")),
        place="pre",
        norm="norm1",
        gain=_gain(block),
    )


def _gain(block: nn.Module) -> Tensor | None:
    scale = part(block, "ls1")
    if isinstance(scale, nn.Identity):
        return None
    gamma = getattr(scale, "gamma", None)
    if not isinstance(gamma, Tensor):
        raise refuse(block, "a LayerScale or nothing at 'ls1'", type(scale).__name__)
    return readable(block, stored(scale, "gamma"), "ls1.gamma")


HOSTS.add(
    "timm_vit",
    Host(
        name="timm_vit",
        # By its full name: many projects have a Block.
        blocks=("timm.models.vision_transformer.Block",),
        taps=timm_vit_taps,
        example="timm's vit_base_patch16_224, deit_tiny_patch16_224",
        prefix_tokens=lambda model: declared(model, "num_prefix_tokens"),
        value_projection=timm_vit_values,
        attention_module=lambda block: "attn",
    ),
)
