"""BERT (Devlin et al. 2019, arXiv 1810.04805): post-norm, separate query, key and value."""

from collections.abc import Mapping

from torch import nn

from unsmooth.models.block_parts import number
from unsmooth.models.hooks import whole_sequences
from unsmooth.models.host import Host, Tap, register
from unsmooth.models.qkv_layouts import SEPARATE, Heads
from unsmooth.models.wiring import Wiring


def bert_taps(block: nn.Module) -> Mapping[str, Tap]:
    """BERT adds the stream and normalises inside its two `output` modules: branches end in their `dense`."""
    return {
        "normed": Tap("attention.self", "input"),
        "attention": Tap("attention.output.dense", "output"),
        "mid": Tap("attention.output", "output"),
        "mlp": Tap("output.dense", "output"),
    }


def bert_wiring(block: nn.Module) -> Wiring:
    """Separate projections; the norms are the ones after the additions."""
    heads = number(block, "attention.self.num_attention_heads")
    return Wiring(
        style="post",
        heads=Heads(heads, heads, number(block, "attention.self.attention_head_size")),
        attention="attention.self",
        value="attention.self.value",
        layout=SEPARATE,
        output="attention.output.dense",
        norms=("attention.output.LayerNorm", "output.LayerNorm"),
        mlp=("intermediate.dense", "output.dense"),
    )


register(
    Host(
        name="bert",
        blocks=("BertLayer",),
        taps=bert_taps,
        example="bert-base-uncased, all-MiniLM-L6-v2",
        prepare=whole_sequences,
        wiring=bert_wiring,
        attention_module=lambda block: "attention.self",
    ),
)
