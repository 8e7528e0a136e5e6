"""Phi-1 to Phi-2 (Gunasekar et al. 2023, arXiv 2306.11644): attention and MLP in parallel, one norm."""

from collections.abc import Mapping

from torch import nn

from unsmooth.models.host import Host, Tap, register
from unsmooth.models.hosts.llama import grouped_heads
from unsmooth.models.qkv_layouts import SEPARATE
from unsmooth.models.wiring import Wiring


def phi_taps(block: nn.Module) -> Mapping[str, Tap]:
    """One `resid_dropout` serves both branches, so the branches are taken where they end, just before it."""
    return {
        "normed": Tap("input_layernorm", "output"),
        "attention": Tap("self_attn", "output"),
        "mlp": Tap("mlp", "output"),
    }


def phi_wiring(block: nn.Module) -> Wiring:
    """Separate value weights, with biases; attention and MLP read one norm."""
    return Wiring(
        style="parallel",
        heads=grouped_heads(block),
        attention="self_attn",
        value="self_attn.v_proj",
        layout=SEPARATE,
        output="self_attn.dense",
        norms=("input_layernorm", "input_layernorm"),
        mlp=("mlp.fc1", "mlp.fc2"),
    )


register(
    Host(
        name="phi",
        blocks=("PhiDecoderLayer",),
        taps=phi_taps,
        example="microsoft/phi-2",
        wiring=phi_wiring,
        attention_module=lambda block: "self_attn",
    ),
)
