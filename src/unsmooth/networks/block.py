r"""One block: attention, then an MLP, each a branch of the stream. Where the norms stand is a switch.

.. math::
    \text{pre: } x + f(\mathrm{LN}\,x) \qquad \text{post: } \mathrm{LN}(x + f(x)) \qquad
    \text{peri: } x + \mathrm{LN}'(f(\mathrm{LN}\,x)) \qquad
    \text{parallel: } x + f(\mathrm{LN}\,x) + g(\mathrm{LN}'x)

Post-norm is Vaswani et al. 2017 (arXiv 1706.03762), pre-norm Xiong et al. 2020 (arXiv 2002.04745), peri-norm Kim et al.
2025 (arXiv 2502.02732). In a parallel block (Black et al. 2022, arXiv 2204.06745) attention f and MLP g read the same.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - as everywhere

from unsmooth.networks.config import Stack
from unsmooth.networks.dropping import Dropout, DropPath

# Places in a block at which something is dropped; the embeddings have place 0.
_PLACES = ("attention", "hidden", "mlp", "attention_path", "mlp_path")


def place_of(layer: int, name: str) -> int:
    """A number of its own for every place of every block."""
    return 1 + layer * len(_PLACES) + _PLACES.index(name)


def layer_norm(config: Stack) -> nn.LayerNorm:
    """A norm of the stream's width."""
    return nn.LayerNorm(config.dim, eps=config.eps, bias=config.norm_bias)


def activated(x: Tensor, name: str) -> Tensor:
    """What stands between two linear maps; of a gated MLP, what its gate goes through.

    >>> activated(torch.tensor([-1.0, 1.0]), "relu"), activated(torch.tensor([-1.0, 1.0]), "gelu")
    (tensor([0., 1.]), tensor([-0.1587,  0.8413]))
    """
    if name == "relu":
        return F.relu(x)
    return F.gelu(x, approximate="tanh" if name == "gelu_tanh" else "none")


class Attention(nn.Module):
    """Attention with queries, keys and values from one product: `qkv` is (3, heads, head dim).

    Args:
        config: Of the network.
        layer: Place of the block, from 0.
        causal: Whether a token sees only itself and those before it.
    """

    # An attribute, so that another function of the same arguments can stand in its place.
    mix = staticmethod(F.scaled_dot_product_attention)

    def __init__(self, config: Stack, layer: int, causal: bool = False) -> None:
        super().__init__()
        self.heads, self.head_dim, self.is_causal = config.heads, config.head_dim, causal
        self.qkv = nn.Linear(config.dim, 3 * config.dim, bias=config.qkv_bias)
        self.out = nn.Linear(config.dim, config.dim, bias=config.out_bias)
        self.dropout = Dropout(config.dropout, place_of(layer, "attention"))

    def forward(self, x_BND: Tensor, mask: Tensor | None = None, keys: Tensor | None = None) -> Tensor:
        """`mask` is True where a query sees a key, broadcastable to (batch, heads, queries, keys)."""
        query, key, value = self.split(self.qkv(x_BND))
        # torch takes either a mask or the word that it is causal; a mask says both.
        mixed = self.mix(query, key, value, mask, is_causal=self.is_causal and mask is None)
        return self.joined(mixed, keys)

    def split(self, made_BNM: Tensor) -> tuple[Tensor, ...]:
        """Views (batch, heads, tokens, head dim) of what was made for each token: queries, keys, values, or fewer."""
        parts = torch.unflatten(made_BNM, -1, (-1, self.heads, self.head_dim))
        return parts.permute(2, 0, 3, 1, 4).unbind(0)

    def joined(self, mixed_BHNE: Tensor, keys: Tensor | None) -> Tensor:
        """The heads side by side, projected back to the stream."""
        out: Tensor = self.dropout(self.out(mixed_BHNE.transpose(1, 2).flatten(2)), keys)
        return out


class Mlp(nn.Module):
    r"""Two linear maps and what is between them; gated, `up` is twice as wide and its second half is the gate.

    .. math:: \mathrm{GEGLU}(u, g) = u \odot \mathrm{GELU}(g)

    Args:
        config: Of the network.
        layer: Place of the block, from 0.
    """

    def __init__(self, config: Stack, layer: int) -> None:
        super().__init__()
        self.gated, self.activation = config.activation == "geglu", config.activation
        self.up = nn.Linear(config.dim, config.hidden * (2 if self.gated else 1), bias=config.mlp_bias)
        self.down = nn.Linear(config.hidden, config.dim, bias=config.mlp_bias)
        self.hidden_dropout = Dropout(config.dropout, place_of(layer, "hidden"))
        self.dropout = Dropout(config.dropout, place_of(layer, "mlp"))

    def forward(self, x_BND: Tensor, keys: Tensor | None = None) -> Tensor:
        """Each token by itself."""
        hidden = self.up(x_BND)
        if self.gated:
            hidden, gate = hidden.chunk(2, dim=-1)
            hidden = hidden * F.gelu(gate)
        else:
            hidden = activated(hidden, self.activation)
        out: Tensor = self.dropout(self.down(self.hidden_dropout(hidden, keys)), keys)
        return out


class Block(nn.Module):
    """One block.

    Args:
        config: Of the network.
        layer: Its place in the stack, from 0.
        causal: Whether a token sees only itself and those before it.
    """

    def __init__(self, config: Stack, layer: int, causal: bool = False) -> None:
        super().__init__()
        self.style = config.norm
        self.norm_attention = layer_norm(config)
        self.attention = Attention(config, layer, causal)
        self.norm_mlp = layer_norm(config)
        self.mlp = Mlp(config, layer)
        if config.norm == "peri":
            self.norm_attention_out, self.norm_mlp_out = layer_norm(config), layer_norm(config)
        rate = config.drop_path * layer / max(1, config.depth - 1)
        # Always there, because a branch ends here: this is where it is read and changed.
        self.attention_path = DropPath(rate, place_of(layer, "attention_path"))
        self.mlp_path = DropPath(rate, place_of(layer, "mlp_path"))

    def forward(self, x_BND: Tensor, attention_mask: Tensor | None = None, keys: Tensor | None = None) -> Tensor:
        """The stream, one block on; `attention_mask` is True where a query sees a key."""
        attended_BND = self.after_attention(x_BND, self.attention(self.read(x_BND), attention_mask, keys), keys)
        return self.after_mlp(attended_BND, x_BND, keys)

    def read(self, x_BND: Tensor) -> Tensor:
        """What attention reads."""
        read: Tensor = x_BND if self.style == "post" else self.norm_attention(x_BND)
        return read

    def after_attention(self, x_BND: Tensor, branch_BND: Tensor, keys: Tensor | None) -> Tensor:
        """The stream with the attention branch in it."""
        if self.style == "peri":
            branch_BND = self.norm_attention_out(branch_BND)
        x_BND = x_BND + self.attention_path(branch_BND, keys)
        return self.norm_attention(x_BND) if self.style == "post" else x_BND

    def after_mlp(self, x_BND: Tensor, entered_BND: Tensor, keys: Tensor | None) -> Tensor:
        """The stream with the MLP branch in it; `entered_BND` is what the block was given."""
        read_BND = entered_BND if self.style == "parallel" else x_BND
        branch_BND = self.mlp(read_BND if self.style == "post" else self.norm_mlp(read_BND), keys)
        if self.style == "peri":
            branch_BND = self.norm_mlp_out(branch_BND)
        x_BND = x_BND + self.mlp_path(branch_BND, keys)
        return self.norm_mlp(x_BND) if self.style == "post" else x_BND


class Blocks(nn.Module):
    """The blocks one after another. A module of its own, so that its call is one pass, whoever calls for it.

    Args:
        config: Of the network.
        causal: Whether a token sees only itself and those before it.
    """

    def __init__(self, config: Stack, causal: bool = False) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(config, layer, causal) for layer in range(config.depth))

    def forward(self, x_BND: Tensor, attention_mask: Tensor | None = None, keys: Tensor | None = None) -> Tensor:
        """The stream after the last block."""
        for block in self.blocks:
            x_BND = block(x_BND, attention_mask, keys)
        return x_BND
