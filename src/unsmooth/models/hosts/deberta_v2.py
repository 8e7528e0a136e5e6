"""DeBERTa-v2 and v3 (He et al. 2021, arXiv 2006.03654, 2111.09543): post-norm encoder, disentangled attention.

Scores are content to content, content to position and position to content, in one softmax, so each head has one map.

The largest v2 models add a convolution of the embeddings to the stream between the first two blocks. It belongs to no
block: layer 1 is what the first block hands on, before it; what the second one reads (site "normed") is after it.
"""

from collections.abc import Mapping

from torch import nn

from unsmooth.models.block_parts import number
from unsmooth.models.host import HOSTS, Host, Tap
from unsmooth.models.hosts.bert import bert_taps
from unsmooth.models.qkv_layouts import SEPARATE, Heads, read_values
from unsmooth.models.value_projection import ValueProjection


def deberta_v2_taps(block: nn.Module) -> Mapping[str, Tap]:
    """Laid out as BERT's."""
    return bert_taps(block)


def deberta_v2_values(block: nn.Module) -> ValueProjection:
    """Positions take part in the scores alone: values are of the content."""
    heads = number(block, "attention.self.num_attention_heads")
    return read_values(
        block,
        value="attention.self.value_proj",
        output="attention.output.dense",
        layout=SEPARATE,
        heads=Heads(heads, heads, number(block, "attention.self.attention_head_size")),
        place="post",
        norm="attention.output.LayerNorm",
    )


HOSTS.add(
    "deberta_v2",
    Host(
        name="deberta_v2",
        blocks=("DebertaV2Layer",),
        taps=deberta_v2_taps,
        example="microsoft/deberta-v3-base, microsoft/deberta-v2-xlarge",
        value_projection=deberta_v2_values,
        attention_module=lambda block: "attention.self",
    ),
)
