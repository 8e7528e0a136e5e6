"""Blocks written out in numpy, float64, token by token where that is clearest: nothing here is ours but the weights."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

Matrix = NDArray[np.float64]


def array(tensor: Tensor) -> Matrix:
    return tensor.detach().double().numpy()


def linear(x: Matrix, module: nn.Module) -> Matrix:
    out = x @ array(module.weight).T
    return out if module.bias is None else out + array(module.bias)


def norm(x: Matrix, module: nn.LayerNorm) -> Matrix:
    centred = x - x.mean(-1, keepdims=True)
    out = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + module.eps) * array(module.weight)
    return out if module.bias is None else out + array(module.bias)


def gelu(x: Matrix) -> Matrix:
    return x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def gelu_tanh(x: Matrix) -> Matrix:
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def softmax(scores: Matrix) -> Matrix:
    raised = np.exp(scores - scores.max())
    return raised / raised.sum()


def heads_of(made: Matrix, heads: int) -> list[Matrix]:
    return np.split(made, heads, axis=-1)


def attention(x: Matrix, block: nn.Module, seen: NDArray[np.bool_]) -> Matrix:
    """One sequence (tokens, dim); `seen` (queries, keys)."""
    module = block.attention
    query, key, value = np.split(linear(x, module.qkv), 3, axis=-1)
    mixed = []
    for q, k, v in zip(*(heads_of(made, module.heads) for made in (query, key, value)), strict=True):
        rows = [softmax(np.where(seen[i], q[i] @ k.T / math.sqrt(module.head_dim), -np.inf)) @ v for i in range(len(x))]
        mixed.append(np.stack(rows))
    return linear(np.concatenate(mixed, axis=-1), module.out)


def mlp(x: Matrix, block: nn.Module, activation: str) -> Matrix:
    made = linear(x, block.mlp.up)
    if activation == "geglu":
        value, gate = np.split(made, 2, axis=-1)
        return linear(value * gelu(gate), block.mlp.down)
    between = {"gelu": gelu, "gelu_tanh": gelu_tanh, "relu": lambda numbers: np.maximum(numbers, 0)}[activation]
    return linear(between(made), block.mlp.down)


def run_block(x: Matrix, block: nn.Module, style: str, activation: str, seen: NDArray[np.bool_]) -> Matrix:
    if style == "post":
        x = norm(x + attention(x, block, seen), block.norm_attention)
        return norm(x + mlp(x, block, activation), block.norm_mlp)
    branch = attention(norm(x, block.norm_attention), block, seen)
    if style == "parallel":
        return x + branch + mlp(norm(x, block.norm_mlp), block, activation)
    x = x + (norm(branch, block.norm_attention_out) if style == "peri" else branch)
    branch = mlp(norm(x, block.norm_mlp), block, activation)
    return x + (norm(branch, block.norm_mlp_out) if style == "peri" else branch)


def relative_attention(
    x: Matrix, past: Matrix, block: nn.Module, content: Matrix, position: Matrix, valid: NDArray[np.bool_]
) -> Matrix:
    """Dai et al. 2019, equation 5, term by term: a token of x sees itself, those before it, and `valid` of the past."""
    module, dim = block.attention, x.shape[-1]
    both = np.concatenate([past, x])
    _, key, value = np.split(linear(both, module.qkv), 3, axis=-1)
    query = np.split(linear(x, module.qkv), 3, axis=-1)[0]
    out = np.zeros_like(x)
    width = module.head_dim
    for head in range(module.heads):
        part = slice(head * width, (head + 1) * width)
        for i in range(len(x)):
            here = len(past) + i
            scores = np.full(len(both), -np.inf)
            for j in range(here + 1):
                if j < len(past) and not valid[j]:
                    continue
                ranks = np.arange(0, dim, 2)
                angle = (here - j) * 10000.0 ** (-ranks / dim)
                r = (
                    np.stack([np.sin(angle), np.cos(angle)], axis=-1).reshape(-1)[:dim]
                    @ array(module.position.weight).T
                )
                scores[j] = (query[i, part] + content[head]) @ key[j, part] + (query[i, part] + position[head]) @ r[
                    part
                ]
            out[i, part] = softmax(scores / math.sqrt(width)) @ value[:, part]
    return linear(out, module.out)
