"""ModernBERT (Warner et al. 2024, arXiv 2412.13663): pre-norm encoder, local and global attention."""

from collections.abc import Mapping

from torch import nn

from unsmooth.models.block_parts import number
from unsmooth.models.host import Host, Tap, register
from unsmooth.models.qkv_layouts import CONCATENATED, Heads
from unsmooth.models.wiring import Wiring


def modernbert_taps(block: nn.Module) -> Mapping[str, Tap]:
    """The first block has an identity for `attn_norm`, because the embeddings are normalised already."""
    return {
        "normed": Tap("attn_norm", "output"),
        "attention": Tap("attn", "output"),
        "mid": Tap("mlp_norm", "input"),
        "mlp": Tap("mlp", "output"),
    }


def modernbert_wiring(block: nn.Module) -> Wiring:
    """`Wqkv` is [3, heads, head dim]."""
    heads = number(block, "attn.num_heads", "attn.config.num_attention_heads")
    return Wiring(
        style="pre",
        heads=Heads(heads, heads, number(block, "attn.head_dim")),
        attention="attn",
        value="attn.Wqkv",
        layout=CONCATENATED,
        output="attn.Wo",
        norms=("attn_norm", "mlp_norm"),
        mlp=("mlp.Wi", "mlp.Wo"),
    )


register(
    Host(
        name="modernbert",
        blocks=("ModernBertEncoderLayer",),
        taps=modernbert_taps,
        example="answerdotai/ModernBERT-base",
        wiring=modernbert_wiring,
        attention_module=lambda block: "attn",
    ),
)
