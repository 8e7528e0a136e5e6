"""Falcon (Almazrouei et al. 2023, arXiv 2311.16867): attention and MLP in parallel or in turn, one norm or two."""

from collections.abc import Mapping

from torch import nn

from unsmooth.models.block_parts import number, refuse
from unsmooth.models.host import HOSTS, Host, Tap
from unsmooth.models.qkv_layouts import BY_GROUP, Heads, read_values
from unsmooth.models.value_projection import ValueProjection
from unsmooth.models.wiring import Wiring


def attention_norm(block: nn.Module) -> str:
    """The larger Falcons have a norm of their own for each branch."""
    return "ln_attn" if hasattr(block, "ln_attn") else "input_layernorm"


def falcon_taps(block: nn.Module) -> Mapping[str, Tap]:
    """Where both run in parallel, attention is added to the MLP's output in place."""
    taps = {
        "normed": Tap(attention_norm(block), "output"),
        "attention": Tap("self_attention", "output"),
        "mlp": Tap("mlp", "output", copied=True),
    }
    if hasattr(block, "post_attention_layernorm"):
        taps["mid"] = Tap("post_attention_layernorm", "input")
    return taps


def falcon_values(block: nn.Module) -> ValueProjection:
    """All three fused layouts are groups of queries with their key and value: one, some, or as many as heads."""
    heads = number(block, "self_attention.num_heads")
    return read_values(
        block,
        value="self_attention.query_key_value",
        output="self_attention.dense",
        layout=BY_GROUP,
        heads=Heads(heads, _groups(block, heads), number(block, "self_attention.head_dim")),
        place="pre",
        norm=attention_norm(block),
    )


def falcon_wiring(block: nn.Module) -> Wiring:
    """Only with a norm for each branch: what a remedy does to one norm must not happen to the other branch too."""
    in_turn = hasattr(block, "post_attention_layernorm")
    if not in_turn and not hasattr(block, "ln_attn"):
        raise refuse(block, "a norm for each branch", "one that attention and MLP both read")
    heads = number(block, "self_attention.num_heads")
    return Wiring(
        style="pre" if in_turn else "parallel",
        heads=Heads(heads, _groups(block, heads), number(block, "self_attention.head_dim")),
        attention="self_attention",
        value="self_attention.query_key_value",
        layout=BY_GROUP,
        output="self_attention.dense",
        norms=("input_layernorm", "post_attention_layernorm") if in_turn else ("ln_attn", "ln_mlp"),
        mlp=("mlp.dense_h_to_4h", "mlp.dense_4h_to_h"),
    )


def _groups(block: nn.Module, heads: int) -> int:
    if number(block, "self_attention.new_decoder_architecture"):
        return number(block, "self_attention.num_kv_heads")
    return 1 if number(block, "self_attention.multi_query") else heads


HOSTS.add(
    "falcon",
    Host(
        name="falcon",
        blocks=("FalconDecoderLayer",),
        taps=falcon_taps,
        example="tiiuae/falcon-rw-1b, tiiuae/falcon-7b, tiiuae/falcon-40b",
        value_projection=falcon_values,
        wiring=falcon_wiring,
        attention_module=lambda block: "self_attention",
    ),
)
