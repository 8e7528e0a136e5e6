"""The networks of `unsmooth.networks`: pre-norm, post-norm, peri-norm or parallel, bidirectional or causal."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from unsmooth.models.block_parts import declared, number
from unsmooth.models.host import Host, Tap, register
from unsmooth.models.qkv_layouts import CONCATENATED, Heads
from unsmooth.models.wiring import Wiring


def own_taps(block: nn.Module) -> Mapping[str, Tap]:
    """Branches end in stochastic depth, after the norm on their output where there is one."""
    branches = {"attention": Tap("attention_path", "output"), "mlp": Tap("mlp_path", "output")}
    if _style(block) == "parallel":  # nothing is between attention and MLP
        return {"normed": Tap("norm_attention", "output"), **branches}
    if _style(block) == "post":
        return {"normed": Tap("attention", "input"), "mid": Tap("norm_attention", "output"), **branches}
    return {"normed": Tap("norm_attention", "output"), "mid": Tap("norm_mlp", "input"), **branches}


def own_wiring(block: nn.Module) -> Wiring:
    """`qkv` is queries, keys, values; a peri-norm block is a pre-norm block whose branches end in a norm."""
    heads, style = number(block, "attention.heads"), _style(block)
    return Wiring(
        style="pre" if style == "peri" else style,
        heads=Heads(heads, heads, number(block, "attention.head_dim")),
        attention="attention",
        value="attention.qkv",
        layout=CONCATENATED,
        output="attention.out",
        norms=("norm_attention", "norm_mlp"),
        mlp=("mlp.up", "mlp.down"),
        output_norms=("norm_attention_out", "norm_mlp_out") if style == "peri" else None,
        switch=("style", "pre", "post") if style in ("pre", "post") else None,
    )


def real_tokens(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor | None:
    """Read the mask a block is handed: (batch, tokens), or (batch, 1, queries, keys), of which a token sees itself."""
    mask: Tensor | None = args[1] if len(args) > 1 else kwargs.get("attention_mask")
    if mask is None or mask.ndim == 2:
        return mask
    return mask[:, 0, 0] if mask.shape[2] == 1 else mask[:, 0].diagonal(dim1=-2, dim2=-1)


def _style(block: nn.Module) -> Any:
    return block.style


register(
    Host(
        name="own",
        # By their full names: many projects have a Block.
        blocks=("unsmooth.networks.block.Block", "unsmooth.networks.relative.RelativeBlock"),
        taps=own_taps,
        example="unsmooth.networks: ViT, Encoder, Decoder; what `unsmooth train` writes",
        prefix_tokens=lambda model: declared(model, "prefix_tokens"),
        real_tokens=real_tokens,
        wiring=own_wiring,
        attention_module=lambda block: "attention",
    ),
)
