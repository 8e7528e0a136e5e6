"""Phi-1 to Phi-2 (Gunasekar et al. 2023, arXiv 2306.11644): attention and MLP in parallel, one norm."""

from collections.abc import Mapping

from torch import nn

from unsmooth.models.host import HOSTS, Host, Tap


def phi_taps(block: nn.Module) -> Mapping[str, Tap]:
    """One `resid_dropout` serves both branches, so the branches are taken where they end, just before it."""
    return {
        "normed": Tap("input_layernorm", "output"),
        "attention": Tap("self_attn", "output"),
        "mlp": Tap("mlp", "output"),
    }


HOSTS.add("phi", Host(name="phi", blocks=("PhiDecoderLayer",), taps=phi_taps, example="microsoft/phi-2"))
