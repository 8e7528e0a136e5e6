"""Positions and vocabulary: what stands before and after the blocks of a text model."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from unsmooth.errors import expected
from unsmooth.networks.config import DecoderConfig, EncoderConfig


def sinusoids(places: Tensor, dim: int) -> Tensor:
    r"""One row for each place (Vaswani et al. 2017, arXiv 1706.03762).

    .. math:: r_{2i} = \sin(p\,\omega_i), \quad r_{2i+1} = \cos(p\,\omega_i), \quad \omega_i = 10000^{-2i/d}

    >>> sinusoids(torch.tensor([0, 1]), 4)
    tensor([[0.0000, 1.0000, 0.0000, 1.0000],
            [0.8415, 0.5403, 0.0100, 0.9999]])
    """
    even = torch.arange(0, dim, 2, device=places.device, dtype=torch.float32)
    angles = places.to(torch.float32)[:, None] * 10000.0 ** (-even / dim)
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2)[:, :dim]


class Positions(nn.Module):
    """A vector for each place, added to the tokens.

    Args:
        config: Of the network.
    """

    def __init__(self, config: EncoderConfig | DecoderConfig) -> None:
        super().__init__()
        self.style, self.length = config.positions, config.length
        if self.style == "learned":
            self.table = nn.Parameter(torch.zeros(config.length, config.dim))
        else:
            # Computed, so that no checkpoint has to hold it.
            self.register_buffer("table", sinusoids(torch.arange(config.length), config.dim), persistent=False)
        if self.style == "scaled_sinusoidal":
            # As in FLASH (Hua et al. 2022, arXiv 2202.10447) and Crammed BERT (Geiping & Goldstein, arXiv 2212.14034).
            # Not a scalar: FSDP shards parameters, and a scalar has nothing to shard.
            self.scale = nn.Parameter(torch.full((1,), config.dim**-0.5))
            self.register_load_state_dict_pre_hook(_as_vector)  # type: ignore[no-untyped-call]

    def forward(self, x_BND: Tensor) -> Tensor:
        """Tokens with their places."""
        tokens = x_BND.shape[1]
        if tokens > self.length:
            raise expected(f"at most {self.length} tokens", tokens, f"a network with length={tokens}, or shorter texts")
        table_ND = self.table[:tokens].to(x_BND.dtype)
        return x_BND + (table_ND * self.scale if self.style == "scaled_sinusoidal" else table_ND)


def _as_vector(module: nn.Module, state: dict[str, Any], prefix: str, *rest: Any) -> None:
    """Checkpoints of earlier versions have the scale as a scalar."""
    if f"{prefix}scale" in state:
        state[f"{prefix}scale"] = state[f"{prefix}scale"].reshape(1)


class TextNetwork(nn.Module):
    """What encoder and decoder share: tokens, and logits over the vocabulary."""

    def __init__(self, config: EncoderConfig | DecoderConfig, head_bias: bool) -> None:
        super().__init__()
        self.tokens = nn.Embedding(config.vocabulary, config.dim)
        self.embedding_scale = config.embedding_scale
        shape = (config.vocabulary, config.dim)
        self.head_weight = None if config.tied else nn.Parameter(torch.zeros(shape))
        self.head_bias = nn.Parameter(torch.zeros(config.vocabulary)) if head_bias else None

    def embedded(self, input_ids: Tensor) -> Tensor:
        """Token embeddings at their scale."""
        found: Tensor = self.tokens(input_ids)
        return found if self.embedding_scale == 1.0 else found * self.embedding_scale

    def logits(self, x_BND: Tensor) -> Tensor:
        """Over the vocabulary, by the matrix of the embeddings where it is tied."""
        weight = self.tokens.weight if self.head_weight is None else self.head_weight
        return nn.functional.linear(x_BND, weight, self.head_bias)
