"""Swin (Liu et al. 2021, arXiv 2103.14030): pre-norm blocks with attention in shifted windows, in stages.

Between two stages four patches become one and the width doubles. That is no layer: blocks are counted through, and the
stage says which of them share a shape.
"""

from collections.abc import Mapping

from torch import nn

from unsmooth.models.block_parts import number
from unsmooth.models.host import HOSTS, IMAGE, Host, Tap
from unsmooth.models.qkv_layouts import SEPARATE, Heads, read_values
from unsmooth.models.value_projection import ValueProjection


def swin_taps(block: nn.Module) -> Mapping[str, Tap]:
    """`drop_path` gets attention's output when the windows are whole images again; either may be an identity."""
    # In older transformers the MLP is `intermediate` and `output`.
    mlp = "mlp" if hasattr(block, "mlp") else "output"
    return {
        "normed": Tap("layernorm_before", "output"),
        "attention": Tap("drop_path", "output"),
        "mid": Tap("layernorm_after", "input"),
        "mlp": Tap(mlp, "output"),
    }


def swin_values(block: nn.Module) -> ValueProjection:
    """In older transformers the projections are one level down and have other names."""
    older = hasattr(block.get_submodule("attention"), "self")
    heads = number(block, "attention.num_attention_heads", "attention.self.num_attention_heads")
    return read_values(
        block,
        value="attention.self.value" if older else "attention.v_proj",
        output="attention.output.dense" if older else "attention.o_proj",
        layout=SEPARATE,
        heads=Heads(heads, heads, number(block, "attention.head_dim", "attention.self.attention_head_size")),
        place="pre",
        norm="layernorm_before",
    )


def swin_stage(path: str) -> int:
    """The second last number of a block's path.

    >>> swin_stage("swin.encoder.layers.2.blocks.5")
    2
    """
    return int(path.split(".")[-3])


HOSTS.add(
    "swin",
    Host(
        name="swin",
        blocks=("SwinLayer",),
        taps=swin_taps,
        example="microsoft/swin-tiny-patch4-window7-224",
        value_projection=swin_values,
        attention_module=lambda block: "attention",
        reads=lambda block: IMAGE,
        pads=False,
        stage=swin_stage,
    ),
)
