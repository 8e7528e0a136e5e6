"""ModernBERT (Warner et al. 2024, arXiv 2412.13663): pre-norm encoder, local and global attention."""

from collections.abc import Mapping

from torch import nn

from unsmooth.models.host import HOSTS, Host, Tap


def modernbert_taps(block: nn.Module) -> Mapping[str, Tap]:
    """The first block has an identity for `attn_norm`, because the embeddings are normalised already."""
    return {
        "normed": Tap("attn_norm", "output"),
        "attention": Tap("attn", "output"),
        "mid": Tap("mlp_norm", "input"),
        "mlp": Tap("mlp", "output"),
    }


HOSTS.add(
    "modernbert",
    Host(
        name="modernbert",
        blocks=("ModernBertEncoderLayer",),
        taps=modernbert_taps,
        example="answerdotai/ModernBERT-base",
    ),
)
