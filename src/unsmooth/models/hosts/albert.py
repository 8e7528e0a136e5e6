"""ALBERT (Lan et al. 2020, arXiv 1909.11942): post-norm, one block called again and again."""

from collections.abc import Mapping

from torch import nn

from unsmooth.models.host import HOSTS, Host, Tap
from unsmooth.models.hosts.bert import whole_feed_forward


def albert_taps(block: nn.Module) -> Mapping[str, Tap]:
    """The attention module adds the stream and normalises itself; the block does so for the MLP."""
    return {
        "normed": Tap("attention", "input"),
        "attention": Tap("attention.dense", "output"),
        "mid": Tap("attention", "output"),
        "mlp": Tap("ffn_output", "output"),
    }


HOSTS.add(
    "albert",
    Host(
        name="albert",
        blocks=("AlbertLayer",),
        taps=albert_taps,
        example="albert-base-v2",
        prepare=whole_feed_forward,
    ),
)
