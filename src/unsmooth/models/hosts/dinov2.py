"""DINOv2 (Oquab et al. 2023, arXiv 2304.07193), also with registers (Darcet et al. 2024, arXiv 2309.16588).

Pre-norm encoder over patches, each branch scaled by learnt weights; registers stand behind the class token.
"""

from collections.abc import Mapping

from torch import Tensor, nn

from unsmooth.models.block_parts import number, part
from unsmooth.models.host import IMAGE, Host, Tap, register
from unsmooth.models.qkv_layouts import SEPARATE, Heads
from unsmooth.models.wiring import Wiring, linear_maps


def dinov2_taps(block: nn.Module) -> Mapping[str, Tap]:
    """One `drop_path` serves both branches, so the branches are taken just before it, scaled already."""
    return {
        "normed": Tap("norm1", "output"),
        "attention": Tap("layer_scale1", "output"),
        "mid": Tap("norm2", "input"),
        "mlp": Tap("layer_scale2", "output"),
    }


def dinov2_wiring(block: nn.Module) -> Wiring:
    """Separate projections, one level down in older transformers; a layer scale ends each branch."""
    older = hasattr(part(block, "attention"), "attention")
    heads = number(block, "attention.num_attention_heads", "attention.attention.num_attention_heads")
    return Wiring(
        style="pre",
        heads=Heads(heads, heads, number(block, "attention.head_dim", "attention.attention.attention_head_size")),
        attention="attention.attention" if older else "attention",
        value="attention.attention.value" if older else "attention.v_proj",
        layout=SEPARATE,
        output="attention.output.dense" if older else "attention.o_proj",
        norms=("norm1", "norm2"),
        mlp=linear_maps(block, "mlp"),
        gains=("layer_scale1.lambda1", "layer_scale2.lambda1"),
        dropout="drop_path",
    )


def dinov2_prefix_tokens(model: nn.Module) -> int:
    """The class token and the registers, which are as special: they hold nothing of one place of the image."""
    registers = (getattr(module, "register_tokens", None) for module in model.modules())
    return 1 + next((found.shape[1] for found in registers if isinstance(found, Tensor)), 0)


register(
    Host(
        name="dinov2",
        blocks=("Dinov2Layer", "Dinov2WithRegistersLayer"),
        taps=dinov2_taps,
        example="facebook/dinov2-base, facebook/dinov2-with-registers-base",
        prefix_tokens=dinov2_prefix_tokens,
        wiring=dinov2_wiring,
        reads=lambda block: IMAGE,
        attention_module=lambda block: "attention",
    ),
)
