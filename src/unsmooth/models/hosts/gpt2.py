"""GPT-2 (Radford et al. 2019): pre-norm decoder."""

from collections.abc import Mapping

from torch import nn

from unsmooth.models.host import HOSTS, Host, Tap


def gpt2_taps(block: nn.Module) -> Mapping[str, Tap]:
    """Both branches end in their own dropout, inside `attn` and `mlp`."""
    return {
        "normed": Tap("ln_1", "output"),
        "attention": Tap("attn", "output"),
        "mid": Tap("ln_2", "input"),
        "mlp": Tap("mlp", "output"),
    }


HOSTS.add("gpt2", Host(name="gpt2", blocks=("GPT2Block",), taps=gpt2_taps, example="gpt2, distilgpt2"))
