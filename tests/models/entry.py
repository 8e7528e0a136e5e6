"""What an entry of the host harness says, and the batches the tiny models are fed."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
import transformers
from torch import Tensor, nn

BATCH, TOKENS, DIM, LAYERS, VOCAB = 3, 6, 16, 3, 40
LENGTHS = (6, 4, 2)
Padding = Literal["right", "left", "none"]
# Defaults lie outside the tiny vocabulary.
SPECIAL: dict[str, Any] = {f"{name}_token_id": 2 for name in ("bos", "eos", "cls", "sep")}


@dataclass(frozen=True)
class Entry:
    """A tiny model of one host.

    Args:
        host: Name in the host registry.
        variant: What tells it from the host's other entries.
        build: Makes the model, with any weights.
        style: How the branches join the stream.
        paths: Site to (module path, end); ``{}`` stands for each number in a block's path.
        norms: Paths of the norms before (or, post-norm, after) attention and MLP.
        blocks: Path of the stack's blocks.
        stem: The module and the end of it that is layer 0.
        batch: Keyword arguments of one forward pass, for a way of padding.
        calls: Layers, which is to say calls of a block in one forward pass.
        paddings: The ways of padding that make sense.
        hidden_states: Whether the model can return its own hidden states.
        prefix_tokens: Tokens that the model puts in front.
        batch_first: Whether its tensors are (batch, tokens, dim).
    """

    host: str
    variant: str
    build: Callable[[], nn.Module]
    style: Literal["pre", "post", "parallel"]
    paths: Mapping[str, tuple[str, str]]
    norms: tuple[str, str]
    blocks: str
    stem: tuple[str, str]
    batch: Callable[[Padding], dict[str, Any]]
    calls: int = LAYERS
    paddings: tuple[Padding, ...] = ("right", "left")
    hidden_states: bool = True
    prefix_tokens: int = 0
    batch_first: bool = True

    @property
    def name(self) -> str:
        """Shown by pytest."""
        return f"{self.host}-{self.variant}"

    def model(self) -> Any:
        """The model, with weights large enough that no branch or norm is near nothing or the identity."""
        torch.manual_seed(0)
        model = self.build().eval()
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
        return model


def hf(name: str, **options: Any) -> Callable[[], nn.Module]:
    """Build ``<name>Model`` of transformers from ``<name>Config``."""
    sizes = {"hidden_size": DIM, "num_hidden_layers": LAYERS, "num_attention_heads": 2, "intermediate_size": 24}
    tokens = {"vocab_size": VOCAB, "max_position_embeddings": 32, "pad_token_id": 1}

    def build() -> Any:
        config = getattr(transformers, f"{name}Config")(**(sizes | tokens | options))
        return getattr(transformers, f"{name}Model")(config)

    return build


def modules_at(model: nn.Module, template: str) -> dict[tuple[str, ...], nn.Module]:
    """Modules whose path is `template` with numbers for ``{}``, by those numbers."""
    pattern = re.compile(re.escape(template).replace(r"\{\}", r"(\d+)"))
    found = {name: pattern.fullmatch(name) for name, _ in model.named_modules()}
    return {match.groups(): model.get_submodule(name) for name, match in found.items() if match}


def real_tokens(padding: Padding) -> Tensor:
    """(batch, tokens), True = real."""
    lengths = torch.tensor(LENGTHS if padding != "none" else (TOKENS,) * BATCH)[:, None]
    positions = torch.arange(TOKENS)
    return positions < lengths if padding != "left" else positions >= TOKENS - lengths


def texts(padding: Padding) -> dict[str, Any]:
    """Token ids with an attention mask."""
    ids = torch.randint(5, VOCAB, (BATCH, TOKENS), generator=torch.Generator().manual_seed(2))
    real = real_tokens(padding)
    return {"input_ids": ids.where(real, 1), "attention_mask": real.long()}


def images(padding: Padding) -> dict[str, Any]:
    """Pixels: four patches an image."""
    return {"pixel_values": torch.randn(BATCH, 3, 8, 8, generator=torch.Generator().manual_seed(3))}


def vectors(batch_first: bool, floating: bool) -> Callable[[Padding], dict[str, Any]]:
    """Token vectors with a padding mask, boolean or in torch's additive form."""

    def make(padding: Padding) -> dict[str, Any]:
        source = torch.randn(BATCH, TOKENS, DIM, generator=torch.Generator().manual_seed(4))
        mask: Tensor = ~real_tokens(padding)
        if floating:
            mask = torch.zeros(BATCH, TOKENS).masked_fill(mask, float("-inf"))
        return {"src": source if batch_first else source.transpose(0, 1), "src_key_padding_mask": mask}

    return make
