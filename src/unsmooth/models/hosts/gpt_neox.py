"""GPT-NeoX (Black et al. 2022, arXiv 2204.06745) and Pythia: attention and MLP in parallel, or in turn."""

from collections.abc import Mapping

from torch import nn

from unsmooth.models.host import HOSTS, Host, Tap


def gpt_neox_taps(block: nn.Module) -> Mapping[str, Tap]:
    """In a parallel block both branches read the same stream, so there is nothing between them."""
    taps = {
        "normed": Tap("input_layernorm", "output"),
        "attention": Tap("post_attention_dropout", "output"),
        "mlp": Tap("post_mlp_dropout", "output"),
    }
    if not block.use_parallel_residual:
        taps["mid"] = Tap("post_attention_layernorm", "input")
    return taps


HOSTS.add(
    "gpt_neox",
    Host(
        name="gpt_neox",
        blocks=("GPTNeoXLayer",),
        taps=gpt_neox_taps,
        example="EleutherAI/pythia-160m, EleutherAI/gpt-neox-20b",
    ),
)
