"""Blocks written out by hand in float64 from their weights, as references for remedies: no hooks, none of our code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - as everywhere

from tests.remedies.hosts import BY_NAME, step_by_step

Map = Callable[[Tensor], Tensor]


def same(x: Tensor) -> Tensor:
    return x


def plus(x: Tensor, branch: Tensor) -> Tensor:
    return x + branch


@dataclass
class Edits:
    """What a remedy does to a block, as plain functions.

    Args:
        values: Of the values (batch, tokens, heads, head dim).
        normed: Of what attention's norm gives.
        first: How the attention branch joins the stream: (stream, branch).
        second: How the MLP branch does: (stream, branch, the block's input).
        out: Of what the block hands on: (output, the block's input).
        norms: Whether the norms are there.
    """

    values: Map = same
    normed: Map = same
    first: Callable[[Tensor, Tensor], Tensor] = plus
    second: Callable[[Tensor, Tensor, Tensor], Tensor] = lambda x, branch, bottom: x + branch
    out: Callable[[Tensor, Tensor], Tensor] = lambda out, bottom: out
    norms: bool = True


@dataclass
class Hand:
    """One block by hand: its style, its two norms, attention (normed stream, edit of values) and MLP."""

    style: str
    norms: tuple[Map, Map]
    attend: Callable[[Tensor, Map], Tensor]
    mlp: Map

    def __call__(self, x: Tensor, edits: Edits) -> Tensor:
        one, two = self.norms if edits.norms else (same, same)
        if self.style == "post":
            middle = edits.normed(one(edits.first(x, self.attend(x, edits.values))))
            return edits.out(two(edits.second(middle, self.mlp(middle), x)), x)
        branch = self.attend(edits.normed(one(x)), edits.values)
        middle = edits.first(x, branch)
        read = x if self.style == "parallel" else middle
        return edits.out(edits.second(middle, self.mlp(two(read)), x), x)


def layer_norm(norm: Any) -> Map:
    def apply(x: Tensor) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        return centred / (centred.square().mean(-1, keepdim=True) + norm.eps).sqrt() * norm.weight + norm.bias

    return apply


def rms_norm(norm: Any) -> Map:
    return lambda x: x / (x.square().mean(-1, keepdim=True) + norm.variance_epsilon).sqrt() * norm.weight


def attention(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    """Heads side by side from (batch, tokens, heads, head dim); fewer heads of keys and values are repeated."""
    k, v = (x.repeat_interleave(q.shape[2] // x.shape[2], dim=2) for x in (k, v))
    logits = torch.einsum("bnhe,bmhe->bhnm", q, k) / q.shape[-1] ** 0.5
    if causal:
        logits = logits.masked_fill(torch.ones_like(logits).triu(1).bool(), float("-inf"))
    return torch.einsum("bhnm,bmhe->bnhe", logits.softmax(-1), v).flatten(2)


def rotate(x: Tensor, dims: int, base: float = 10000.0) -> Tensor:
    angle = torch.arange(x.shape[1], dtype=x.dtype)[:, None] * base ** (-torch.arange(0, dims, 2, dtype=x.dtype) / dims)
    turn = torch.cat([angle, angle], -1)[:, None]
    part, rest = x[..., :dims], x[..., dims:]
    left, right = part.chunk(2, -1)
    return torch.cat([part * turn.cos() + torch.cat([-right, left], -1) * turn.sin(), rest], -1)


def heads(x: Tensor, dim: int = 8) -> Tensor:
    return x.unflatten(-1, (-1, dim))


def bert(block: Any) -> Hand:
    inner, out = block.attention.self, block.attention.output
    return Hand(
        "post",
        (layer_norm(out.LayerNorm), layer_norm(block.output.LayerNorm)),
        lambda x, edit: out.dense(
            attention(heads(inner.query(x)), heads(inner.key(x)), edit(heads(inner.value(x))), False)
        ),
        lambda x: block.output.dense(F.gelu(block.intermediate.dense(x))),
    )


def albert(block: Any) -> Hand:
    inner = block.attention
    return Hand(
        "post",
        (layer_norm(inner.LayerNorm), layer_norm(block.full_layer_layer_norm)),
        lambda x, edit: inner.dense(
            attention(heads(inner.query(x)), heads(inner.key(x)), edit(heads(inner.value(x))), False)
        ),
        lambda x: block.ffn_output(F.gelu(block.ffn(x), approximate="tanh")),
    )


def torch_layer(block: Any) -> Hand:
    inner = block.self_attn

    def attend(x: Tensor, edit: Map) -> Tensor:
        q, k, v = F.linear(x, inner.in_proj_weight, inner.in_proj_bias).chunk(3, -1)
        return inner.out_proj(attention(heads(q), heads(k), edit(heads(v)), False))

    return Hand(
        "pre" if block.norm_first else "post",
        (layer_norm(block.norm1), layer_norm(block.norm2)),
        attend,
        lambda x: block.linear2(F.relu(block.linear1(x))),
    )


def gpt2(block: Any) -> Hand:
    def attend(x: Tensor, edit: Map) -> Tensor:
        q, k, v = (x @ block.attn.c_attn.weight + block.attn.c_attn.bias).chunk(3, -1)
        mixed = attention(heads(q), heads(k), edit(heads(v)), True)
        return mixed @ block.attn.c_proj.weight + block.attn.c_proj.bias

    def mlp(x: Tensor) -> Tensor:
        inside = F.gelu(x @ block.mlp.c_fc.weight + block.mlp.c_fc.bias, approximate="tanh")
        return inside @ block.mlp.c_proj.weight + block.mlp.c_proj.bias

    return Hand("pre", (layer_norm(block.ln_1), layer_norm(block.ln_2)), attend, mlp)


def neox(block: Any) -> Hand:
    def attend(x: Tensor, edit: Map) -> Tensor:
        q, k, v = block.attention.query_key_value(x).unflatten(-1, (4, 3, 8)).unbind(-2)
        return block.attention.dense(attention(rotate(q, 2), rotate(k, 2), edit(v), True))

    return Hand(
        "parallel" if block.use_parallel_residual else "pre",
        (layer_norm(block.input_layernorm), layer_norm(block.post_attention_layernorm)),
        attend,
        lambda x: block.mlp.dense_4h_to_h(F.gelu(block.mlp.dense_h_to_4h(x))),
    )


def llama(block: Any) -> Hand:
    inner, mlp = block.self_attn, block.mlp

    def attend(x: Tensor, edit: Map) -> Tensor:
        q, k = rotate(heads(inner.q_proj(x)), 8), rotate(heads(inner.k_proj(x)), 8)
        return inner.o_proj(attention(q, k, edit(heads(inner.v_proj(x))), True))

    return Hand(
        "pre",
        (rms_norm(block.input_layernorm), rms_norm(block.post_attention_layernorm)),
        attend,
        lambda x: mlp.down_proj(F.silu(mlp.gate_proj(x)) * mlp.up_proj(x)),
    )


def vit(block: Any) -> Hand:
    inner = block.attention
    return Hand(
        "pre",
        (layer_norm(block.layernorm_before), layer_norm(block.layernorm_after)),
        lambda x, edit: inner.o_proj(
            attention(heads(inner.q_proj(x)), heads(inner.k_proj(x)), edit(heads(inner.v_proj(x))), False)
        ),
        lambda x: block.mlp.fc2(F.gelu(block.mlp.fc1(x))),
    )


HANDS: dict[str, Callable[[Any], Hand]] = {
    "BertLayer": bert,
    "AlbertLayer": albert,
    "TransformerEncoderLayer": torch_layer,
    "GPT2Block": gpt2,
    "GPTNeoXLayer": neox,
    "LlamaDecoderLayer": llama,
    "ViTLayer": vit,
}
POST = ("bert", "albert", "torch_post", "torch_tokens_first")
PRE = ("torch_pre", "gpt2", "neox_sequential", "llama", "vit")
EVERY = (*POST, *PRE, "neox_parallel")


def exact(name: str) -> Any:
    """A plain host in float64."""
    return BY_NAME[name].model().double()


def blocks_of(model: nn.Module) -> list[Any]:
    return [module for module in model.modules() if type(module).__name__ in HANDS]


def streams(name: str, model: nn.Module) -> tuple[Tensor, Tensor]:
    """What enters the first block and what the last one hands on, (batch, tokens, dim)."""
    host, blocks = BY_NAME[name], blocks_of(model)
    entered: list[Tensor] = []
    left: list[Any] = []
    handles = [
        blocks[0].register_forward_pre_hook(lambda module, args: entered.append(args[0])),
        blocks[-1].register_forward_hook(lambda module, args, out: left.append(out)),
    ]
    call = host.call(host.inputs().double() if host.kind in ("vision", "vectors") else host.inputs())
    with step_by_step():
        model(**call)
    for handle in handles:
        handle.remove()
    last = left[-1] if isinstance(left[-1], Tensor) else left[-1][0]
    return tuple(x if host.batch_first else x.transpose(0, 1) for x in (entered[0], last))


def by_hand(name: str, plain: nn.Module, edits: Edits | list[Edits]) -> Tensor:
    """What the last block hands on with `edits` in every block call, or with one of a list in each."""
    x, _ = streams(name, plain)
    blocks = blocks_of(plain)
    if name == "albert":
        blocks = blocks * plain.config.num_hidden_layers
    edits = edits if isinstance(edits, list) else [edits] * len(blocks)
    for block, edit in zip(blocks, edits, strict=True):
        x = HANDS[type(block).__name__](block)(x, edit)
    return x


def near(name: str, got: Tensor, wanted: Tensor) -> None:
    """Float64 against float64, but for what the libraries compute in float32 (RMSNorm and rotary positions)."""
    tolerance = 3e-6 if name in ("llama", "neox_sequential", "neox_parallel") else 1e-11
    torch.testing.assert_close(got, wanted, rtol=0.0, atol=tolerance * float(wanted.detach().abs().max()))


def gradients_near(name: str, remedied: nn.Module, plain: nn.Module, edits: Edits | list[Edits]) -> None:
    """Gradients of every weight in the blocks, against autograd through the blocks by hand."""
    for model, out in ((remedied, streams(name, remedied)[1]), (plain, by_hand(name, plain, edits))):
        wanted = torch.randn(out.shape, generator=torch.Generator().manual_seed(3), dtype=out.dtype)
        model.zero_grad()
        (out - wanted).square().mean().backward()
    for got, one in zip(blocks_of(remedied), blocks_of(plain), strict=True):
        found = dict(got.named_parameters())
        kept = {key: weight.grad for key, weight in one.named_parameters() if weight.grad is not None and key in found}
        assert len(kept) >= 8
        # All at once, since those of key biases are zero but for rounding.
        near(name, *(torch.cat([grads[key].flatten() for key in kept]) for grads in (_grads(found), kept)))


def _grads(parameters: dict[str, nn.Parameter]) -> dict[str, Tensor]:
    return {key: weight.grad for key, weight in parameters.items() if weight.grad is not None}
