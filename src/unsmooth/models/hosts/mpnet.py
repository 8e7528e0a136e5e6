"""MPNet (Song et al. 2020, arXiv 2004.09297): post-norm like BERT, with relative position biases."""

from collections.abc import Mapping

from torch import nn

from unsmooth.models.host import HOSTS, Host, Tap


def mpnet_taps(block: nn.Module) -> Mapping[str, Tap]:
    """`attention.attn` is the branch with its projection; `attention` adds the stream and normalises."""
    return {
        "normed": Tap("attention.attn", "input"),
        "attention": Tap("attention.attn", "output"),
        "mid": Tap("attention", "output"),
        "mlp": Tap("output.dense", "output"),
    }


HOSTS.add("mpnet", Host(name="mpnet", blocks=("MPNetLayer",), taps=mpnet_taps, example="all-mpnet-base-v2"))
