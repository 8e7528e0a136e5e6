"""Entries of our own networks: every norm style, with and without a class token, causal or not."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from tests.models.entry import DIM, LAYERS, VOCAB, Entry, images, texts
from unsmooth import networks

_SIZES: dict[str, Any] = {"depth": LAYERS, "dim": DIM, "heads": 2, "hidden": 24}
_TEXT: dict[str, Any] = {"vocabulary": VOCAB, "length": 32}


class _Logits(nn.Module):
    """A decoder without its memory, as a user may wrap it."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        logits: Tensor = self.network(input_ids, attention_mask=attention_mask)[0]
        return logits


def _own(variant: str, config: networks.Config, **options: Any) -> Entry:
    causal, post, peri = config.kind == "decoder", config.norm == "post", config.norm == "peri"
    home = "network." if causal else ""
    layer = f"{home}stack.blocks.{{}}"

    def build() -> nn.Module:
        network = networks.build(config)
        return _Logits(network) if causal else network

    return Entry(
        "own",
        variant,
        build,
        style="post" if post else "pre",
        paths={
            "normed": (f"{layer}.attention.qkv", "input"),
            "attention": (f"{layer}.norm_attention_out" if peri else f"{layer}.attention.out", "output"),
            "mid": (f"{layer}.mlp.up", "input") if post else (f"{layer}.norm_mlp", "input"),
            "mlp": (f"{layer}.norm_mlp_out" if peri else f"{layer}.mlp.down", "output"),
        },
        norms=(f"{layer}.norm_attention", f"{layer}.norm_mlp"),
        blocks=layer,
        stem=(f"{home}dropout", "output"),
        hidden_states=False,
        **options,
    )


OWN = (
    _own(
        "vit",
        networks.ViTConfig(image=8, patch=4, classes=5, **_SIZES),
        batch=images,
        paddings=("none",),
        prefix_tokens=1,
    ),
    _own("encoder-post", networks.EncoderConfig(norm="post", **_SIZES, **_TEXT), batch=texts),
    _own(
        "encoder-peri",
        networks.EncoderConfig(norm="peri", activation="geglu", qkv_bias=False, norm_bias=False, **_SIZES, **_TEXT),
        batch=texts,
    ),
    _own("decoder-learned", networks.DecoderConfig(positions="learned", **_SIZES, **_TEXT), batch=texts),
    _own("decoder-relative", networks.DecoderConfig(norm="post", memory=4, **_SIZES, **_TEXT), batch=texts),
)
