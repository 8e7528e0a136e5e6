"""ViT (Dosovitskiy et al. 2021, arXiv 2010.11929): pre-norm encoder over patches and a class token."""

from collections.abc import Mapping

from torch import nn

from unsmooth.models.host import HOSTS, Host, Tap


def vit_taps(block: nn.Module) -> Mapping[str, Tap]:
    """One `dropout` serves both branches, so the branches are taken where they end, just before it."""
    # In older transformers the MLP is `intermediate` and `output`, and `output` adds the stream itself.
    mlp = "mlp" if hasattr(block, "mlp") else "output.dense"
    return {
        "normed": Tap("layernorm_before", "output"),
        "attention": Tap("attention", "output"),
        "mid": Tap("layernorm_after", "input"),
        "mlp": Tap(mlp, "output"),
    }


HOSTS.add(
    "vit",
    Host(
        name="vit",
        blocks=("ViTLayer",),
        taps=vit_taps,
        example="google/vit-base-patch16-224",
        prefix_tokens=lambda model: 1,
    ),
)
