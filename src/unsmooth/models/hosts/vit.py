"""ViT (Dosovitskiy et al. 2021, arXiv 2010.11929): pre-norm encoder over patches and a class token."""

from collections.abc import Mapping

from torch import nn

from unsmooth.models.block_parts import number
from unsmooth.models.host import IMAGE, Host, Tap, register
from unsmooth.models.qkv_layouts import SEPARATE, Heads
from unsmooth.models.wiring import Wiring


def vit_taps(block: nn.Module) -> Mapping[str, Tap]:
    """One `dropout` serves both branches, so the branches are taken where they end, just before it."""
    # In older transformers the MLP is `intermediate` and `output`, and `output` adds the stream itself.
    mlp = "mlp" if hasattr(block, "mlp") else "output.dense"
    return {
        "normed": Tap("layernorm_before", "output"),
        "attention": Tap("attention", "output"),
        "mid": Tap("layernorm_after", "input"),
        "mlp": Tap(mlp, "output"),
    }


def vit_wiring(block: nn.Module) -> Wiring:
    """In older transformers the projections are one level down and have other names."""
    older = hasattr(block.get_submodule("attention"), "attention")
    heads = number(block, "attention.num_attention_heads", "attention.attention.num_attention_heads")
    return Wiring(
        style="pre",
        heads=Heads(heads, heads, number(block, "attention.head_dim", "attention.attention.attention_head_size")),
        attention="attention.attention" if older else "attention",
        value="attention.attention.value" if older else "attention.v_proj",
        layout=SEPARATE,
        output="attention.output.dense" if older else "attention.o_proj",
        norms=("layernorm_before", "layernorm_after"),
        mlp=("intermediate.dense", "output.dense") if older else ("mlp.fc1", "mlp.fc2"),
        dropout=None if older else "dropout",
    )


register(
    Host(
        name="vit",
        blocks=("ViTLayer",),
        taps=vit_taps,
        example="google/vit-base-patch16-224",
        prefix_tokens=lambda model: 1,
        wiring=vit_wiring,
        reads=lambda block: IMAGE,
        attention_module=lambda block: "attention",
    ),
)
