"""Language model: learned positions as in GPT-2, or relative ones with a memory as in Transformer-XL."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from unsmooth.errors import expected
from unsmooth.networks.block import Blocks, layer_norm, place_of
from unsmooth.networks.config import DecoderConfig
from unsmooth.networks.dropping import Dropout, keys_for
from unsmooth.networks.embedding import Positions, TextNetwork, sinusoids
from unsmooth.networks.inits import Initialised
from unsmooth.networks.relative import Memory, RelativeBlocks, Sight, visible_keys


class Decoder(TextNetwork, Initialised):
    """Token ids in, logits of the next token out.

    With a memory, attention sees it beside the segment. A remedy that takes a mean over tokens takes it over those of
    the segment so far: never over later ones, and not over the memory. Only `attnscale`, `centred` and `shaped`, whose
    mean is that of the values which attention sees, count those of the memory.

    Args:
        config: What it is made of.
        seed: The same seed gives the same weights.

    Example:
        >>> model = Decoder(DecoderConfig(vocabulary=9, depth=2, dim=8, heads=2, hidden=16, length=4, memory=6)).eval()
        >>> logits, memory = model(torch.tensor([[1, 2, 3, 4]]))
        >>> logits, memory = model(torch.tensor([[5, 6, 7, 8]]), memory)
        >>> logits.shape, memory.states.shape, memory.filled
        (torch.Size([1, 4, 9]), torch.Size([2, 1, 6, 8]), tensor([6]))
    """

    def __init__(self, config: DecoderConfig, seed: int = 0) -> None:
        super().__init__(config, head_bias=False)
        self.config = config
        self.relative = config.positions == "relative"
        self.positions = nn.Identity() if self.relative else Positions(config)
        self.dropout = Dropout(config.dropout, place=0)
        if self.relative:
            self.content_bias = nn.Parameter(torch.zeros(config.heads, config.head_dim))
            self.position_bias = nn.Parameter(torch.zeros(config.heads, config.head_dim))
        self.stack: RelativeBlocks | Blocks = RelativeBlocks(config) if self.relative else Blocks(config, causal=True)
        self.norm = nn.Identity() if config.norm == "post" else layer_norm(config)
        self.output_dropout = Dropout(config.dropout if config.output_dropout else 0.0, place_of(config.depth, "mlp"))
        self.start(seed)

    def forward(
        self,
        input_ids: Tensor,
        memory: Memory | None = None,
        *,
        attention_mask: Tensor | None = None,
        keys: Tensor | None = None,
    ) -> tuple[Tensor, Memory | None]:
        """Logits (batch, tokens, vocabulary), and the memory for the next segment (None where there is none).

        Args:
            input_ids: (batch, tokens).
            memory: What the last call gave, or `start_memory`; None at the start of a text.
            attention_mask: (batch, tokens), 1 for real tokens and 0 for padding; not with a memory.
            keys: (batch,) int64, one random key per sample, for dropout and stochastic depth.
        """
        hidden_BND, memory = self.hidden(input_ids, memory, attention_mask=attention_mask, keys=keys)
        return self.logits(hidden_BND), memory

    def hidden(
        self,
        input_ids: Tensor,
        memory: Memory | None = None,
        *,
        attention_mask: Tensor | None = None,
        keys: Tensor | None = None,
    ) -> tuple[Tensor, Memory | None]:
        """Tokens (batch, tokens, dim) after the last norm, and the memory for the next segment."""
        self._check(memory, attention_mask)
        keys = keys_for(self, self.config.dropout, self.config.drop_path, keys, input_ids)
        real_BN = None if attention_mask is None else attention_mask.bool()
        x_BND = self.dropout(self.positions(self.embedded(input_ids)), keys)
        if not self.relative:
            # Without padding there is no mask: torch is told that attention is causal.
            seen = None if real_BN is None else visible_keys(x_BND.shape[1], None, real_BN, x_BND.device)
            return self.output_dropout(self.norm(self.stack(x_BND, seen, keys)), keys), None
        sight = self._sight(visible_keys(x_BND.shape[1], memory, real_BN, x_BND.device))
        past = None if memory is None else memory.states
        x_BND, reads_LBND = self.stack(x_BND, real_BN, keys, sight=sight, past_LBMD=past)
        size = self.config.memory if memory is None else memory.states.shape[2]
        x_BND = self.output_dropout(self.norm(x_BND), keys)
        return x_BND, _remember(memory, reads_LBND, size) if size else None

    def _sight(self, seen: Tensor) -> Sight:
        far_to_near = torch.arange(seen.shape[-1], device=seen.device).flip(0)
        return Sight(seen, sinusoids(far_to_near, self.config.dim), self.content_bias, self.position_bias)

    def start_memory(
        self,
        batch: int,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        length: int | None = None,
    ) -> Memory:
        """A memory of `length` places (the configuration's where None) in which nothing is yet."""
        size = self.config.memory if length is None else length
        where = self.tokens.weight.device if device is None else device
        shape = (self.config.depth, batch, size, self.config.dim)
        states = torch.zeros(shape, device=where, dtype=self.tokens.weight.dtype if dtype is None else dtype)
        return Memory(states, torch.zeros(batch, dtype=torch.int64, device=where))

    def _check(self, memory: Memory | None, attention_mask: Tensor | None) -> None:
        if memory is not None and not self.relative:
            got = f"positions={self.config.positions!r}"
            raise expected("relative positions where there is a memory", got, 'DecoderConfig(positions="relative")')
        if memory is not None and attention_mask is not None:
            raise expected("segments without padding where there is a memory", "an attention_mask", "full segments")


def _remember(memory: Memory | None, reads_LBND: Tensor, size: int) -> Memory:
    """The newest `size` tokens; the places that are still empty are in front."""
    batch, tokens = reads_LBND.shape[1:3]
    if memory is None:
        filled = torch.full((batch,), min(tokens, size), dtype=torch.int64, device=reads_LBND.device)
        # Nothing is in front of the first tokens; a negative width cuts off.
        return Memory(nn.functional.pad(reads_LBND, (0, 0, size - tokens, 0)), filled)
    states = torch.cat([memory.states, reads_LBND.to(memory.states.dtype)], dim=2)[:, :, -size:]
    return Memory(states, (memory.filled + tokens).clamp(max=size))
