"""Phi-1 to Phi-2 (Gunasekar et al. 2023, arXiv 2306.11644): attention and MLP in parallel, one norm."""

from collections.abc import Mapping

from torch import nn

from unsmooth.models.host import HOSTS, Host, Tap
from unsmooth.models.hosts.llama import grouped_heads
from unsmooth.models.qkv_layouts import SEPARATE, read_values
from unsmooth.models.value_projection import ValueProjection


def phi_taps(block: nn.Module) -> Mapping[str, Tap]:
    """One `resid_dropout` serves both branches, so the branches are taken where they end, just before it."""
    return {
        "normed": Tap("input_layernorm", "output"),
        "attention": Tap("self_attn", "output"),
        "mlp": Tap("mlp", "output"),
    }


def phi_values(block: nn.Module) -> ValueProjection:
    """Separate value weights, with biases."""
    return read_values(
        block,
        value="self_attn.v_proj",
        output="self_attn.dense",
        layout=SEPARATE,
        heads=grouped_heads(block),
        place="pre",
        norm="input_layernorm",
    )


HOSTS.add(
    "phi",
    Host(
        name="phi",
        blocks=("PhiDecoderLayer",),
        taps=phi_taps,
        example="microsoft/phi-2",
        value_projection=phi_values,
        attention_module=lambda block: "self_attn",
    ),
)
