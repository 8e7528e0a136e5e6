"""Swin (Liu et al. 2021, arXiv 2103.14030): pre-norm blocks with attention in shifted windows, in stages.

Between two stages four patches become one and the width doubles. That is no layer: blocks are counted through, and the
stage says which of them share a shape.

Values and heads lie in windows, shifted in every other block and filled up at the edges; branches, norms and the stream
are of the whole image. So a remedy that takes a mean over tokens takes it over the whole image, where it acts on the
latter, and is refused where it would act on the former. What only changes attention's own map stays inside a window.
"""

from collections.abc import Mapping

from torch import nn

from unsmooth.models.block_parts import number
from unsmooth.models.host import IMAGE, Host, Tap, register
from unsmooth.models.qkv_layouts import SEPARATE, Heads
from unsmooth.models.wiring import Wiring


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


def swin_wiring(block: nn.Module) -> Wiring:
    """In older transformers the projections are one level down and have other names."""
    older = hasattr(block.get_submodule("attention"), "self")
    heads = number(block, "attention.num_attention_heads", "attention.self.num_attention_heads")
    return Wiring(
        style="pre",
        heads=Heads(heads, heads, number(block, "attention.head_dim", "attention.self.attention_head_size")),
        attention="attention.self" if older else "attention",
        value="attention.self.value" if older else "attention.v_proj",
        layout=SEPARATE,
        output="attention.output.dense" if older else "attention.o_proj",
        norms=("layernorm_before", "layernorm_after"),
        mlp=("intermediate.dense", "output.dense") if older else ("mlp.fc1", "mlp.fc2"),
        windowed=True,
    )


def swin_stage(path: str) -> int:
    """The second last number of a block's path.

    >>> swin_stage("swin.encoder.layers.2.blocks.5")
    2
    """
    return int(path.split(".")[-3])


register(
    Host(
        name="swin",
        blocks=("SwinLayer",),
        taps=swin_taps,
        example="microsoft/swin-tiny-patch4-window7-224",
        wiring=swin_wiring,
        attention_module=lambda block: "attention",
        reads=lambda block: IMAGE,
        stage=swin_stage,
    ),
)
