"""DINOv2 (Oquab et al. 2023, arXiv 2304.07193), also with registers (Darcet et al. 2024, arXiv 2309.16588).

Pre-norm encoder over patches, each branch scaled by learnt weights; registers stand behind the class token.
"""

from collections.abc import Mapping

from torch import Tensor, nn

from unsmooth.models.block_parts import number, part, readable, refuse
from unsmooth.models.host import HOSTS, Host, Tap
from unsmooth.models.qkv_layouts import SEPARATE, Heads, read_values
from unsmooth.models.stored import stored
from unsmooth.models.value_projection import ValueProjection


def dinov2_taps(block: nn.Module) -> Mapping[str, Tap]:
    """One `drop_path` serves both branches, so the branches are taken just before it, scaled already."""
    return {
        "normed": Tap("norm1", "output"),
        "attention": Tap("layer_scale1", "output"),
        "mid": Tap("norm2", "input"),
        "mlp": Tap("layer_scale2", "output"),
    }


def dinov2_values(block: nn.Module) -> ValueProjection:
    """Separate projections, one level down in older transformers; the layer scale is the gain."""
    older = hasattr(part(block, "attention"), "attention")
    heads = number(block, "attention.num_attention_heads", "attention.attention.num_attention_heads")
    return read_values(
        block,
        value="attention.attention.value" if older else "attention.v_proj",
        output="attention.output.dense" if older else "attention.o_proj",
        layout=SEPARATE,
        heads=Heads(heads, heads, number(block, "attention.head_dim", "attention.attention.attention_head_size")),
        place="pre",
        norm="norm1",
        gain=_gain(block),
    )


def _gain(block: nn.Module) -> Tensor:
    scale = part(block, "layer_scale1")
    if not isinstance(getattr(scale, "lambda1", None), Tensor):
        raise refuse(block, "a layer scale at 'layer_scale1'", type(scale).__name__)
    return readable(block, stored(scale, "lambda1"), "layer_scale1.lambda1")


def dinov2_prefix_tokens(model: nn.Module) -> int:
    """The class token and the registers, which are as special: they hold nothing of one place of the image."""
    registers = (getattr(module, "register_tokens", None) for module in model.modules())
    return 1 + next((found.shape[1] for found in registers if isinstance(found, Tensor)), 0)


HOSTS.add(
    "dinov2",
    Host(
        name="dinov2",
        blocks=("Dinov2Layer", "Dinov2WithRegistersLayer"),
        taps=dinov2_taps,
        example="facebook/dinov2-base, facebook/dinov2-with-registers-base",
        prefix_tokens=dinov2_prefix_tokens,
        value_projection=dinov2_values,
        pads=False,
        attention_module=lambda block: "attention",
    ),
)
