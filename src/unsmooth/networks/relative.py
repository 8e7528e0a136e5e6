r"""Attention by relative positions over a segment and a memory of earlier ones (Transformer-XL; Dai et al. 2019).

.. math:: s\,\big((q_i + u) \cdot k_j + (q_i + v) \cdot W_R r_{i-j}\big), \qquad s = 1/\sqrt{d_h}

(arXiv 1901.02860, equation 5) with sinusoids r of the distance, a map W_R in each layer, and u and v per head, shared
by all layers as in the official code. The first term is torch's fused attention, the second the mask that it adds.

What a layer keeps of earlier tokens is what its attention read of them, with no gradient. In a post-norm block that is
the block's input, as in the paper. In a pre-norm block the official code keeps the input and normalises it again with
the newest norm; here it stays as it was read, the same wherever weights do not change between segments.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - as everywhere

from unsmooth.networks.block import Attention, Block
from unsmooth.networks.config import DecoderConfig


class Memory(NamedTuple):
    """What a decoder keeps of earlier segments; shapes never change, so that a CUDA graph can hold it.

    Args:
        states: (depth, batch, memory, dim), the newest token last.
        filled: (batch,) int64: how many of them, from the end, are tokens; the rest is not seen. Set it to 0 where a
            row begins a new text.
    """

    states: Tensor
    filled: Tensor


class Sight(NamedTuple):
    """What all blocks of one pass share.

    Args:
        visible: True where a query sees a key, (1 or batch, 1, tokens, memory + tokens).
        distances: (memory + tokens, dim) sinusoids of the distances, the farthest first.
        content_bias: u, (heads, head dim).
        position_bias: v, (heads, head dim).
    """

    visible: Tensor
    distances: Tensor
    content_bias: Tensor
    position_bias: Tensor


class RelativeAttention(Attention):
    """Causal attention over memory and segment; `position` is W_R, `memory` how many earlier tokens are kept."""

    def __init__(self, config: DecoderConfig, layer: int) -> None:
        super().__init__(config, layer, causal=True)
        self.memory = config.memory
        self.position = nn.Linear(config.dim, config.dim, bias=False)

    def over(self, past_BMD: Tensor | None, made_BNM: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries of the segment, keys and values of memory and segment."""
        query, key, value = self.split(made_BNM)
        if past_BMD is None:
            return query, key, value
        # Past the module `qkv`: a memory has no queries, and it is no token of this call.
        width = self.heads * self.head_dim
        bias = None if self.qkv.bias is None else self.qkv.bias[width:]
        past_key, past_value = self.split(F.linear(past_BMD, self.qkv.weight[width:], bias))
        return query, torch.cat([past_key, key], dim=2), torch.cat([past_value, value], dim=2)

    def recalled(
        self, x_BND: Tensor, sight: Sight, past_BMD: Tensor | None = None, keys: Tensor | None = None
    ) -> tuple[Tensor, Tensor] | None:
        """Of a call with these arguments: the sum of the values in the memory that are seen, and how many are.

        The sum is (batch, 1, heads, head dim), the number (batch, 1), both in float32 or better and the same for all
        queries of a row, as each sees the whole of its memory. None where there is no memory.
        """
        if past_BMD is None:
            return None
        seen_BM1 = sight.visible[:, 0, 0, : past_BMD.shape[1], None].expand(len(past_BMD), -1, -1)
        wide = torch.promote_types(x_BND.dtype, torch.float32)
        count_B1 = seen_BM1.sum(dim=1).to(wide)
        # Values are linear in what was read of a token, so their mean is that of the mean token.
        mean_BD = past_BMD.to(wide).masked_fill(~seen_BM1, 0.0).sum(dim=1) / count_B1.clamp(min=1.0)
        width = 2 * self.heads * self.head_dim
        bias = None if self.qkv.bias is None else self.qkv.bias[width:].to(wide)
        value_BD = F.linear(mean_BD, self.qkv.weight[width:].to(wide), bias)
        return (value_BD * count_B1).view(-1, 1, self.heads, self.head_dim), count_B1

    def forward(  # type: ignore[override]
        self, x_BND: Tensor, sight: Sight, past_BMD: Tensor | None = None, keys: Tensor | None = None
    ) -> Tensor:
        """Attend to what was read before, `past_BMD`, and to the segment."""
        query, key, value = self.over(past_BMD, self.qkv(x_BND))
        (position_1HKE,) = self.split(self.position(sight.distances.to(x_BND.dtype))[None])
        content, position = (bias.to(query.dtype)[:, None] for bias in (sight.content_bias, sight.position_bias))
        scores = shifted((query + position) @ position_1HKE.to(query.dtype).mT) * self.head_dim**-0.5
        scores = scores.masked_fill(~sight.visible, float("-inf"))
        return self.joined(self.mix(query + content, key, value, scores), keys)


class RelativeBlock(Block):
    """A block whose attention is relative, and which also gives what that attention read."""

    def __init__(self, config: DecoderConfig, layer: int) -> None:
        super().__init__(config, layer)
        self.attention = RelativeAttention(config, layer)

    def forward(  # type: ignore[override]
        self,
        x_BND: Tensor,
        attention_mask: Tensor | None = None,
        keys: Tensor | None = None,
        *,
        sight: Sight,
        past_BMD: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """The stream, one block on, and what attention read.

        `attention_mask` (batch, tokens) is for those who look at the call; what it hides is not in `sight` either.
        """
        read_BND = self.read(x_BND)
        attended_BND = self.after_attention(x_BND, self.attention(read_BND, sight, past_BMD, keys), keys)
        return self.after_mlp(attended_BND, x_BND, keys), read_BND


class RelativeBlocks(nn.Module):
    """Relative blocks one after another.

    Args:
        config: Of the network.
    """

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(RelativeBlock(config, layer) for layer in range(config.depth))

    def forward(
        self,
        x_BND: Tensor,
        attention_mask: Tensor | None = None,
        keys: Tensor | None = None,
        *,
        sight: Sight,
        past_LBMD: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """The stream after the last block, and what each attention read (depth, batch, tokens, dim), detached."""
        reads = []
        for layer, block in enumerate(self.blocks):
            past_BMD = None if past_LBMD is None else past_LBMD[layer]
            x_BND, read_BND = block(x_BND, attention_mask, keys, sight=sight, past_BMD=past_BMD)
            reads.append(read_BND.detach())
        return x_BND, torch.stack(reads)


def shifted(scores_BHNK: Tensor) -> Tensor:
    """From scores by distance (the farthest first) to scores by key (Dai et al. 2019, appendix B).

    Row i of N queries moves left by N − 1 − i; what comes in at the right is the future, to be masked.

    >>> shifted(torch.tensor([[[[2.0, 1.0, 0.0], [2.0, 1.0, 0.0]]]]))[0, 0]  # two queries, one token of memory
    tensor([[1., 0., 0.],
            [2., 1., 0.]])
    """
    batch, heads, queries, keys = scores_BHNK.shape
    padded = F.pad(scores_BHNK, (1, 0)).view(batch, heads, keys + 1, queries)
    return padded[:, :, 1:].reshape(scores_BHNK.shape)


def visible_keys(tokens: int, memory: Memory | None, real_BN: Tensor | None, device: torch.device) -> Tensor:
    """True where a query sees a key: not after it, not padding, not an empty place of the memory."""
    size = 0 if memory is None else memory.states.shape[2]
    seen = torch.ones(tokens, size + tokens, dtype=torch.bool, device=device).tril(size)[None, None]
    if memory is not None:
        place_K = torch.arange(size + tokens, device=device)
        seen = seen & (place_K >= size - memory.filled[:, None])[:, None, None]
    if real_BN is not None:
        seen = seen & F.pad(real_BN, (size, 0), value=True)[:, None, None]
    return seen
