"""DeBERTa-v2 and v3 (He et al. 2021, arXiv 2006.03654, 2111.09543): post-norm encoder, disentangled attention.

Scores are content to content, content to position and position to content, in one softmax, so each head has one map.

The largest v2 models add a convolution of the embeddings to the stream between the first two blocks. It belongs to no
block: layer 1 is what the first block hands on, before it; what the second one reads (site "normed") is after it.
"""

from collections.abc import Mapping
from dataclasses import replace

from torch import nn

from unsmooth.models.host import Host, Tap, register
from unsmooth.models.hosts.bert import bert_taps, bert_wiring
from unsmooth.models.wiring import Wiring


def deberta_v2_taps(block: nn.Module) -> Mapping[str, Tap]:
    """Laid out as BERT's."""
    return bert_taps(block)


def deberta_v2_wiring(block: nn.Module) -> Wiring:
    """As BERT's. Positions take part in the scores alone: values are of the content."""
    return replace(bert_wiring(block), value="attention.self.value_proj")


register(
    Host(
        name="deberta_v2",
        blocks=("DebertaV2Layer",),
        taps=deberta_v2_taps,
        example="microsoft/deberta-v3-base, microsoft/deberta-v2-xlarge",
        wiring=deberta_v2_wiring,
        attention_module=lambda block: "attention.self",
    ),
)
