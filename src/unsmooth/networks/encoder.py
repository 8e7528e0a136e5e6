"""Text encoder with logits over its vocabulary (Devlin et al. 2019, arXiv 1810.04805), and a classifier on top."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from unsmooth.errors import unknown_name
from unsmooth.networks.block import Blocks, activated, layer_norm
from unsmooth.networks.config import EncoderConfig
from unsmooth.networks.dropping import Dropout, keys_for
from unsmooth.networks.embedding import Positions, TextNetwork
from unsmooth.networks.inits import Initialised


class Encoder(TextNetwork, Initialised):
    """Token ids in, logits over the vocabulary out.

    Args:
        config: What it is made of.
        seed: The same seed gives the same weights.

    Example:
        >>> model = Encoder(EncoderConfig(vocabulary=9, depth=2, dim=8, heads=2, hidden=16))
        >>> ids = torch.tensor([[3, 4, 5]])
        >>> model(ids).shape, model(ids, at=torch.tensor([[1]])).shape
        (torch.Size([1, 3, 9]), torch.Size([1, 1, 9]))
    """

    def __init__(self, config: EncoderConfig, seed: int = 0) -> None:
        super().__init__(config, head_bias=config.mlp_bias)
        self.config = config
        self.positions = Positions(config)
        self.embedding_norm = layer_norm(config) if config.embedding_norm else nn.Identity()
        self.dropout = Dropout(config.dropout, place=0)
        self.stack = Blocks(config)
        self.norm = nn.Identity() if config.norm == "post" else layer_norm(config)
        self.transform = Transform(config) if config.transform_head else nn.Identity()
        self.start(seed)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        *,
        at: Tensor | None = None,
        keys: Tensor | None = None,
    ) -> Tensor:
        """Logits (batch, tokens, vocabulary), or (batch, K, vocabulary) at the places `at` (batch, K).

        Args:
            input_ids: (batch, tokens).
            attention_mask: (batch, tokens), 1 for real tokens and 0 for padding; None where there is none.
            at: Places of the tokens to predict, so that no logits are computed for the others.
            keys: (batch,) int64, one random key per sample, for dropout and stochastic depth.
        """
        hidden_BND = self.hidden(input_ids, attention_mask, keys)
        if at is not None:
            hidden_BND = hidden_BND.gather(1, at[:, :, None].expand(-1, -1, hidden_BND.shape[-1]))
        return self.logits(self.transform(hidden_BND))

    def hidden(self, input_ids: Tensor, attention_mask: Tensor | None = None, keys: Tensor | None = None) -> Tensor:
        """Tokens (batch, tokens, dim) after the last norm."""
        keys = keys_for(self, self.config.dropout, self.config.drop_path, keys, input_ids)
        mask = None if attention_mask is None else attention_mask.bool()[:, None, None]
        x_BND = self.dropout(self.embedding_norm(self.positions(self.embedded(input_ids))), keys)
        out: Tensor = self.norm(self.stack(x_BND, mask, keys))
        return out


class Transform(nn.Module):
    """A linear map, an activation and a norm before the logits, as BERT has them."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.linear = nn.Linear(config.dim, config.dim, bias=config.mlp_bias)
        self.activation = config.activation
        self.norm = layer_norm(config)

    def forward(self, x_BND: Tensor) -> Tensor:
        """Each token by itself."""
        out: Tensor = self.norm(activated(self.linear(x_BND), self.activation))
        return out


class Classifier(nn.Module):
    """An encoder with one linear map on top, for tasks on whole texts.

    Args:
        encoder: Trained or not.
        classes: Logits.
        pooling: What is classified: the "first" token, or the "mean" over real tokens.
        pooler: Whether a linear map and a tanh come before the last one, as in BERT.
        seed: The same seed gives the same head.

    Example:
        >>> encoder = Encoder(EncoderConfig(vocabulary=9, depth=2, dim=8, heads=2, hidden=16))
        >>> Classifier(encoder, 3)(torch.tensor([[3, 4, 5]])).shape
        torch.Size([1, 3])
    """

    def __init__(
        self, encoder: Encoder, classes: int, pooling: str = "first", *, pooler: bool = False, seed: int = 0
    ) -> None:
        super().__init__()
        if pooling not in ("first", "mean"):
            raise unknown_name("pooling", pooling, ("first", "mean"))
        self.encoder, self.pooling = encoder, pooling
        self.head = nn.Linear(encoder.config.dim, classes)
        generator = torch.Generator().manual_seed(seed)
        nn.init.trunc_normal_(self.head.weight, std=0.02, a=-0.04, b=0.04, generator=generator)
        nn.init.zeros_(self.head.bias)
        self.pooler = nn.Linear(encoder.config.dim, encoder.config.dim) if pooler else None
        if self.pooler is not None:
            nn.init.trunc_normal_(self.pooler.weight, std=0.02, a=-0.04, b=0.04, generator=generator)
            nn.init.zeros_(self.pooler.bias)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, *, keys: Tensor | None = None) -> Tensor:
        """Logits (batch, classes)."""
        hidden_BND = self.encoder.hidden(input_ids, attention_mask, keys)
        if self.pooling == "first":
            pooled_BD = hidden_BND[:, 0]
        elif attention_mask is None:
            pooled_BD = hidden_BND.mean(dim=1)
        else:
            real_BN1 = attention_mask.to(hidden_BND.dtype)[:, :, None]
            pooled_BD = (hidden_BND * real_BN1).sum(dim=1) / real_BN1.sum(dim=1).clamp(min=1.0)
        if self.pooler is not None:
            pooled_BD = torch.tanh(self.pooler(pooled_BD))
        logits: Tensor = self.head(pooled_BD)
        return logits
