"""ModernBERT (Warner et al. 2024, arXiv 2412.13663): pre-norm encoder, local and global attention."""

from collections.abc import Mapping

from torch import nn

from unsmooth.models.block_parts import number
from unsmooth.models.host import HOSTS, Host, Tap
from unsmooth.models.qkv_layouts import CONCATENATED, Heads, read_values
from unsmooth.models.value_projection import ValueProjection


def modernbert_taps(block: nn.Module) -> Mapping[str, Tap]:
    """The first block has an identity for `attn_norm`, because the embeddings are normalised already."""
    return {
        "normed": Tap("attn_norm", "output"),
        "attention": Tap("attn", "output"),
        "mid": Tap("mlp_norm", "input"),
        "mlp": Tap("mlp", "output"),
    }


def modernbert_values(block: nn.Module) -> ValueProjection:
    """`Wqkv` is [3, heads, head dim]."""
    heads = number(block, "attn.num_heads", "attn.config.num_attention_heads")
    return read_values(
        block,
        value="attn.Wqkv",
        output="attn.Wo",
        layout=CONCATENATED,
        heads=Heads(heads, heads, number(block, "attn.head_dim")),
        place="pre",
        norm="attn_norm",
    )


HOSTS.add(
    "modernbert",
    Host(
        name="modernbert",
        blocks=("ModernBertEncoderLayer",),
        taps=modernbert_taps,
        example="answerdotai/ModernBERT-base",
        value_projection=modernbert_values,
        attention_module=lambda block: "attn",
    ),
)
