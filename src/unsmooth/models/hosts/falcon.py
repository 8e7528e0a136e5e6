"""Falcon (Almazrouei et al. 2023, arXiv 2311.16867): attention and MLP in parallel or in turn, one norm or two."""

from collections.abc import Mapping

from torch import nn

from unsmooth.models.block_parts import number
from unsmooth.models.host import Host, Tap, register
from unsmooth.models.qkv_layouts import BY_GROUP, Heads
from unsmooth.models.wiring import Wiring


def falcon_norms(block: nn.Module) -> tuple[str, str]:
    """Of attention and MLP: in parallel, the larger Falcons have one for each, the others one for both."""
    if hasattr(block, "post_attention_layernorm"):
        return "input_layernorm", "post_attention_layernorm"
    return ("ln_attn", "ln_mlp") if hasattr(block, "ln_attn") else ("input_layernorm", "input_layernorm")


def falcon_taps(block: nn.Module) -> Mapping[str, Tap]:
    """Where both run in parallel, attention is added to the MLP's output in place."""
    taps = {
        "normed": Tap(falcon_norms(block)[0], "output"),
        "attention": Tap("self_attention", "output"),
        "mlp": Tap("mlp", "output", copied=True),
    }
    if hasattr(block, "post_attention_layernorm"):
        taps["mid"] = Tap("post_attention_layernorm", "input")
    return taps


def falcon_wiring(block: nn.Module) -> Wiring:
    """All three fused layouts are groups of queries with their key and value: one, some, or as many as heads."""
    heads = number(block, "self_attention.num_heads")
    return Wiring(
        style="pre" if hasattr(block, "post_attention_layernorm") else "parallel",
        heads=Heads(heads, _groups(block, heads), number(block, "self_attention.head_dim")),
        attention="self_attention",
        value="self_attention.query_key_value",
        layout=BY_GROUP,
        output="self_attention.dense",
        norms=falcon_norms(block),
        mlp=("mlp.dense_h_to_4h", "mlp.dense_4h_to_h"),
        dropout="config.attention_dropout",
    )


def _groups(block: nn.Module, heads: int) -> int:
    if number(block, "self_attention.new_decoder_architecture"):
        return number(block, "self_attention.num_kv_heads")
    return 1 if number(block, "self_attention.multi_query") else heads


register(
    Host(
        name="falcon",
        blocks=("FalconDecoderLayer",),
        taps=falcon_taps,
        example="tiiuae/falcon-rw-1b, tiiuae/falcon-7b, tiiuae/falcon-40b",
        wiring=falcon_wiring,
        attention_module=lambda block: "self_attention",
    ),
)
