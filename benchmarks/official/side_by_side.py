"""Two models of the same weights, one with the authors' modules in it and one with ours, asked the same."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import BertConfig, BertModel

import unsmooth
from benchmarks.official.sources import Source
from unsmooth.remedies.base import Edit

BATCH, TOKENS, DIM, HEADS, LAYERS = 2, 9, 24, 4, 3


@dataclass(frozen=True)
class Case:
    """What both make of the same numbers.

    Args:
        what: The settings.
        theirs: From an input to an output, by the authors' modules.
        ours: The same by ours.
        input: For both.
    """

    what: str
    theirs: Callable[[Tensor], Tensor]
    ours: Callable[[Tensor], Tensor]
    input: Tensor

    def differences(self) -> dict[str, float]:
        """How far the outputs are apart at the most, and how far the gradients of the input, beside the largest."""
        (one, of_one), (other, of_other) = (self._outcome(run) for run in (self.theirs, self.ours))
        apart = float((of_one - of_other).abs().max() / of_one.abs().max())
        return {"output": float((one - other).abs().max()), "gradient": apart}

    def _outcome(self, run: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        x = self.input.clone().requires_grad_()
        out = run(x)
        weights = torch.linspace(-1.0, 1.0, out.numel(), dtype=out.dtype).view(out.shape)
        (grad,) = torch.autograd.grad((out * weights).sum(), x)
        return out.detach(), grad


@dataclass(frozen=True)
class Comparison:
    """One remedy.

    Args:
        remedy: Ours, by name.
        sources: The authors' files.
        cases: From the folder of the authors' files and a precision to what is compared.
        notes: What a reader must know.
    """

    remedy: str
    sources: Sequence[Source]
    cases: Callable[[Path, torch.dtype], list[Case]]
    notes: str = field(default="")


class Mlp(nn.Module):
    """What timm's is: the authors' blocks name its two maps so."""

    def __init__(self, in_features: int, hidden_features: int, act_layer: type[nn.Module], drop: float = 0.0) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(in_features, hidden_features), nn.Linear(hidden_features, in_features)
        self.act = act_layer()

    def forward(self, x: Tensor) -> Tensor:
        """(batch, tokens, dim)."""
        out: Tensor = self.fc2(self.act(self.fc1(x)))
        return out


def deit(block: Callable[..., Any], layers: Sequence[Any], dtype: torch.dtype) -> list[Any]:
    """The authors' blocks with the weights of torch's."""
    return [block_like(block(DIM, HEADS, 2.0, qkv_bias=True).to(dtype), layer) for layer in layers]


def encoder(dtype: torch.dtype, depth: int = LAYERS) -> Any:
    """Torch's own, pre-norm, as DeiT's blocks are; every weight is random. In training mode, without dropout."""
    layer = nn.TransformerEncoderLayer(
        DIM, HEADS, 2 * DIM, 0.0, "gelu", batch_first=True, norm_first=True, layer_norm_eps=1e-6, dtype=dtype
    )
    return randomised(nn.TransformerEncoder(layer, depth, enable_nested_tensor=False))


def bert(dtype: torch.dtype) -> Any:
    """Hugging Face's, post-norm."""
    config = BertConfig(
        vocab_size=20,
        hidden_size=DIM,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        intermediate_size=2 * DIM,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return randomised(BertModel(config, add_pooling_layer=False).to(dtype))


def randomised(model: nn.Module) -> Any:
    """Every weight drawn anew, those of norms around one."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(0.0, 0.2)
            if "norm" in name.lower() and name.endswith("weight"):
                parameter.add_(1.0)
    return model.train()


def block_like(block: Any, layer: Any) -> Any:
    """A block of DeiT's form with the weights of torch's."""
    pairs = [(block.norm1, layer.norm1), (block.norm2, layer.norm2), (block.attn.proj, layer.self_attn.out_proj)]
    pairs += [(block.mlp.fc1, layer.linear1), (block.mlp.fc2, layer.linear2)]
    with torch.no_grad():
        for one, other in pairs:
            getattr(one, "layernorm", one).load_state_dict(other.state_dict())
        for norm in (block.norm1, block.norm2):
            getattr(norm, "layernorm", norm).eps = layer.norm1.eps  # in their models it is the same 1e-6
        block.attn.qkv.weight.copy_(layer.self_attn.in_proj_weight)
        block.attn.qkv.bias.copy_(layer.self_attn.in_proj_bias)
    return block.train()


def edited(model: nn.Module, remedy: str, **options: Any) -> tuple[Any, list[Any]]:
    """A copy of a model with our remedy, and its edits, block by block."""
    found = unsmooth.apply(copy.deepcopy(model), remedy, **options)
    return found, [module for module in found.modules() if isinstance(module, Edit)]


def read(model: Any) -> Callable[[Tensor], Tensor]:
    """From the embeddings of BERT to its last hidden states."""

    def run(x: Tensor) -> Tensor:
        out: Tensor = model(inputs_embeds=x).last_hidden_state
        return out

    return run


def tokens(dtype: torch.dtype) -> Tensor:
    """Some that have something in common."""
    return torch.randn(BATCH, TOKENS, DIM, dtype=dtype) + torch.randn(DIM, dtype=dtype)


def drawn(parameter: Tensor, low: float, high: float) -> None:
    """Numbers such as training may bring."""
    with torch.no_grad():
        parameter.uniform_(low, high)
