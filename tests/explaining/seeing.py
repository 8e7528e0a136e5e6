"""Tiny models seen from inside in float64, and what they should show: dense Jacobians and t_sim from its definition."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, is_dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tests.models.entries import ENTRIES
from tests.models.entry import Entry, Padding, real_tokens
from unsmooth import explain
from unsmooth.explaining import Explanation
from unsmooth.explaining.jacobian import BlockMap, Split
from unsmooth.explaining.observe import BatchView, LayerView, observe
from unsmooth.models import find_anatomy

Matrix = NDArray[np.float64]

BY_NAME = {entry.name: entry for entry in ENTRIES}
# These compute norms or softmax in float32 whatever they are given.
ROUNDING = dict.fromkeys(("llama", "mistral", "mixtral", "qwen", "gemma", "phi3", "modernbert", "bloom"), 1e-5)


# Their masks overflow in float64, and rows in which all is masked become NaN.
_PADDINGS: dict[str, tuple[Padding, ...]] = {"gemma-gemma2": ("none",), "bloom-tiny": ("right",)}


def paddings(entry: Entry) -> tuple[Padding, ...]:
    return _PADDINGS.get(entry.name, entry.paddings)


CASES = [(entry, padding) for entry in ENTRIES for padding in paddings(entry)]
CASE_NAMES = [f"{entry.name}-{padding}" for entry, padding in CASES]


def doubled(batch: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value.double() if value.is_floating_point() else value for name, value in batch.items()}


def view_of(entry: Entry, padding: Padding, dtype: torch.dtype = torch.float64) -> BatchView:
    """One batch through a tiny model."""
    model = entry.model().to(dtype)
    batch = entry.batch(padding)
    return view(model, doubled(batch) if dtype == torch.float64 else batch, real_tokens(padding), entry.prefix_tokens)


def view(model: nn.Module, batch: Any, real_BN: Tensor | None, prefix_tokens: int = 0) -> BatchView:
    if hasattr(getattr(model, "config", None), "use_cache"):
        model.config.use_cache = False
    with torch.no_grad():
        # Images have as many tokens as the model makes of them.
        return observe(find_anatomy(model), batch, None if prefix_tokens else real_BN)


def block_map(seen: BatchView, layer: int) -> BlockMap:
    return BlockMap(seen.layers[layer - 1], Split(seen.real_BN))


def dense_jacobians(layer: LayerView, point_BND: Tensor, real_BN: Tensor) -> list[Matrix]:
    """The whole Jacobian of each sequence's real tokens, (n d, n d), by backward differentiation."""

    def run(x_BND: Tensor) -> Tensor:
        # Sequences do not mix, so the sum over them keeps each one's derivatives apart.
        return layer.rerun(torch.where(real_BN.unsqueeze(-1), x_BND, layer.sites["input"])).sum(dim=0)

    whole_NDBND = torch.autograd.functional.jacobian(run, point_BND)
    return [dense_block(whole_NDBND[:, :, index], real_N) for index, real_N in enumerate(real_BN)]


def dense_block(jacobian_NDND: Tensor, real_N: Tensor) -> Matrix:
    part = jacobian_NDND[real_N][:, :, real_N]
    size = part.shape[0] * part.shape[1]
    found: Matrix = part.reshape(size, size).numpy()
    return found


def token_mean(tokens: int, dim: int) -> Matrix:
    """Π ⊗ I on rows of tokens laid end to end."""
    return np.kron(np.full((tokens, tokens), 1.0 / tokens), np.eye(dim))


def similarity(x_ND: Matrix | Tensor) -> float:
    """t_sim from its definition."""
    x = np.asarray(x_ND, dtype=np.float64)
    return float(len(x) * np.square(x.mean(axis=0)).sum() / np.square(x).sum())


def tokens_of(x_BND: Tensor, real_BN: Tensor) -> list[Matrix]:
    """Real tokens of each sequence."""
    return [x_ND[real_N].double().numpy() for x_ND, real_N in zip(x_BND, real_BN, strict=True)]


def encoder(dim: int = 8, heads: int = 2, layers: int = 2, **options: Any) -> nn.TransformerEncoder:
    """A torch encoder with seeded weights."""
    torch.manual_seed(7)
    settings: dict[str, Any] = {"batch_first": True, "dropout": 0.0, "norm_first": True} | options
    layer = nn.TransformerEncoderLayer(dim, heads, 2 * dim, **settings)
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False).eval()


@torch.no_grad()
def set_values(model: nn.TransformerEncoder, strength: float | Tensor, bias: bool = False) -> nn.TransformerEncoder:
    """Make the summed H of every layer `strength` times the identity, or the matrix `strength`: W_V = I, W_O = H."""
    for layer in model.layers:
        dim = layer.self_attn.embed_dim
        layer.self_attn.in_proj_weight[2 * dim :] = torch.eye(dim)
        matrix = strength * torch.eye(dim) if isinstance(strength, float) else strength
        layer.self_attn.out_proj.weight.copy_(matrix.mT)
        if not bias:
            layer.self_attn.in_proj_bias[2 * dim :] = 0.0
            layer.self_attn.out_proj.bias.zero_()
    return model


def streams(batch: int = 3, tokens: int = 6, dim: int = 8, seed: int = 0) -> Tensor:
    return torch.randn(batch, tokens, dim, generator=torch.Generator().manual_seed(seed))


def found(model: nn.Module | str, data: Any = None, **options: Any) -> Explanation:
    return explain(model, data, progress=False, **options)


def numbers(value: Any) -> Iterator[float]:
    """Every number of a finding, however deep."""
    if isinstance(value, complex):
        yield from (value.real, value.imag)
    elif isinstance(value, float):
        yield value
    elif isinstance(value, dict):
        yield from numbers(list(value.values()))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from numbers(asdict(item) if is_dataclass(item) else item)  # type: ignore[arg-type]


def found_by_spectra(model: nn.Module, data: Any = None, **options: Any) -> Explanation:
    """Without Jacobians, which cost most."""
    return found(model, data, jacobian=False, **options)
