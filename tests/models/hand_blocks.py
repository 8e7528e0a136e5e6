"""Blocks of every kind written by hand, and what is in them by float64 arithmetic that shares no code with them.

The weights of each head are drawn one by one; a block only lays them out, fused, interleaved or apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

BATCH, TOKENS, DIM, HEAD_DIM = 2, 5, 12, 4


@dataclass(frozen=True)
class Kind:
    """What a block is like.

    Args:
        style: Where the norms stand; "sandwich" has them before and on the branches, "output" on the branches alone.
        heads: Query heads.
        key_value: Heads of keys and values.
        layout: In what order the projections' columns are.
        fused: Whether torch's fused attention makes the map.
        causal: Whether a token sees only itself and what is before it.
        gain: LayerScale, as a "module" or a bare "weight", or a weight of one "number", or its "tanh"; None for none.
        scale: What both branches are multiplied by.
        gated: Whether heads are multiplied by a function of a linear map of what attention reads: "each" number by
            its own sigmoid, or a "head" by one softplus.
        sink: Whether each head has a logit to which no value belongs.
        query_norm: Whether queries and keys are normalised.
        latent: Whether values are a linear map of a norm of a narrow linear map.
        value_norm: Whether the values of each head are normalised.
        heads_norm: Whether the heads side by side are normalised.
        factor: What values are multiplied by.
        deal: How query heads read value heads: one "run" after another, or in "turn".
    """

    style: str = "pre"
    heads: int = 4
    key_value: int = 4
    layout: str = "separate"
    fused: bool = True
    causal: bool = False
    gain: str | None = None
    scale: float = 1.0
    gated: str | None = None
    sink: bool = False
    query_norm: bool = False
    latent: bool = False
    value_norm: bool = False
    heads_norm: bool = False
    factor: float = 1.0
    deal: str = "run"


# For each layout the columns of each projection, as names of parts of a head.
def columns(kind: Kind) -> dict[str, list[str]]:
    """The heads' parts in the order in which each projection gives them."""
    q = [f"q{h}" for h in range(kind.heads)]
    k, v = [[f"{name}{g}" for g in range(kind.key_value)] for name in "kv"]
    group = kind.heads // kind.key_value
    by_group = [one for g in range(kind.key_value) for one in (*q[g * group : (g + 1) * group], f"k{g}", f"v{g}")]
    return {
        "separate": {"to_q": q, "to_k": k, "to_v": v},
        "qkv": {"qkv": [*q, *k, *v]},
        "vkq": {"qkv": [*v, *k, *q]},
        "grouped": {"qkv": by_group},
        "kv": {"to_q": q, "to_kv": [*k, *v]},
        "kv by head": {"to_q": q, "to_kv": [one for pair in zip(k, v, strict=True) for one in pair]},
    }[kind.layout]


class LayerScale(nn.Module):
    """Multiplies by a learnt number per channel."""

    def __init__(self) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(DIM))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gamma


class Attention(nn.Module):
    """Attention of one kind, its projections laid out as the kind says."""

    def __init__(self, kind: Kind) -> None:
        super().__init__()
        self.kind = kind
        for name, parts in columns(kind).items():
            self.add_module(name, nn.Linear(DIM, HEAD_DIM * len(parts)))
        if kind.latent:
            self.down, self.narrow_norm = nn.Linear(DIM, 3 + 6), nn.LayerNorm(6)  # three columns are for others
            self.to_v = nn.Linear(6, HEAD_DIM * kind.key_value)
        if kind.gated is not None:  # the first columns are for others
            self.gate = nn.Linear(DIM, 5 + kind.heads * (HEAD_DIM if kind.gated == "each" else 1))
        if kind.value_norm:
            self.value_norm = nn.LayerNorm(HEAD_DIM)
        if kind.heads_norm:
            self.heads_norm = nn.LayerNorm(HEAD_DIM * kind.heads)
        if kind.sink:
            self.sinks = nn.Parameter(torch.randn(kind.heads))
        if kind.query_norm:
            self.query_norm, self.key_norm = nn.LayerNorm(HEAD_DIM), nn.LayerNorm(HEAD_DIM)
        self.out = nn.Linear(HEAD_DIM * kind.heads, DIM)

    def forward(self, x: Tensor) -> Tensor:
        kind, parts = self.kind, {}
        for name, names in columns(kind).items():
            read = self.narrow_norm(self.down(x)[..., 3:]) if kind.latent and name == "to_v" else x
            made = getattr(self, name)(read)
            parts |= {part: made[..., i * HEAD_DIM : (i + 1) * HEAD_DIM] for i, part in enumerate(names)}
        q = torch.stack([parts[f"q{h}"] for h in range(kind.heads)], dim=1)
        k, v = (torch.stack([parts[f"{n}{reads(kind, h)}"] for h in range(kind.heads)], dim=1) for n in "kv")
        if kind.query_norm:
            q, k = self.query_norm(q), self.key_norm(k)
        if kind.value_norm:
            v = self.value_norm(torch.stack([parts[f"v{g}"] for g in range(kind.key_value)], dim=1))
            v = v[:, [reads(kind, h) for h in range(kind.heads)]]
        v = v if kind.factor == 1.0 else v * kind.factor
        if kind.fused:
            mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=kind.causal)
        else:
            scores = q @ k.mT / HEAD_DIM**0.5
            if kind.causal:
                future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
                scores = scores.masked_fill(future, float("-inf"))
            if kind.sink:
                sinks = self.sinks[:, None, None].expand(len(x), -1, x.shape[1], 1)
                mixed = torch.cat([scores, sinks], -1).softmax(-1)[..., :-1] @ v
            else:
                mixed = scores.softmax(-1) @ v
        heads = mixed.transpose(1, 2).flatten(2)
        if kind.gated == "each":
            heads = heads * self.gate(x)[..., 5:].sigmoid()
        if kind.gated == "head":
            shut = nn.functional.softplus(self.gate(x)[..., 5:])
            heads = (heads.unflatten(-1, (kind.heads, -1)) * shut[..., None]).flatten(2)
        return self.out(self.heads_norm(heads) if kind.heads_norm else heads)


def reads(kind: Kind, head: int) -> int:
    """The key/value head of a query head."""
    return head // (kind.heads // kind.key_value) if kind.deal == "run" else head % kind.key_value


class HandBlock(nn.Module):
    """A block of one kind."""

    def __init__(self, kind: Kind) -> None:
        super().__init__()
        self.kind = kind
        self.attn = Attention(kind)
        self.mlp = nn.Sequential(nn.Linear(DIM, 20), nn.GELU(), nn.Linear(20, DIM))
        self.norm1, self.norm2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        if kind.style == "sandwich":
            self.out_norm1, self.out_norm2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        if kind.gain == "module":
            self.ls1, self.ls2 = LayerScale(), LayerScale()
        if kind.gain in ("weight", "number", "tanh"):
            self.gamma1, self.gamma2 = (nn.Parameter(torch.ones(DIM if kind.gain == "weight" else 1)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        style = self.kind.style
        if style == "parallel":
            read = self.norm1(x)
            return x + self.joins(self.attn(read), 1) + self.joins(self.mlp(read), 2)
        if style == "post":
            middle = self.norm1(x + self.joins(self.attn(x), 1))
            return self.norm2(middle + self.joins(self.mlp(middle), 2))
        if style == "output":
            middle = x + self.joins(self.norm1(self.attn(x)), 1)
            return middle + self.joins(self.norm2(self.mlp(middle)), 2)
        middle = x + self.joins(self.attn(self.norm1(x)), 1)
        return middle + self.joins(self.mlp(self.norm2(middle)), 2)

    def joins(self, branch: Tensor, number: int) -> Tensor:
        """A branch as it is added."""
        if self.kind.style == "sandwich":
            branch = getattr(self, f"out_norm{number}")(branch)
        if self.kind.gain == "module":
            branch = getattr(self, f"ls{number}")(branch)
        if self.kind.gain in ("weight", "number", "tanh"):
            gamma = getattr(self, f"gamma{number}")
            branch = branch * (gamma.tanh() if self.kind.gain == "tanh" else gamma)
        return branch if self.kind.scale == 1.0 else branch * self.kind.scale


def hand_block(kind: Kind, *, fresh: bool = False) -> HandBlock:
    """A block with weights drawn at random; as its library would begin it where it is `fresh`."""
    torch.manual_seed(0)
    block = HandBlock(kind).eval()
    if not fresh:
        with torch.no_grad():
            for parameter in block.parameters():
                parameter.add_(0.3 * torch.randn(parameter.shape))
    return block


def stream(seed: int = 1) -> Tensor:
    """What goes into a block."""
    return torch.randn(BATCH, TOKENS, DIM, generator=torch.Generator().manual_seed(seed))


def head_weights(block: HandBlock, part: str) -> tuple[Tensor, Tensor]:
    """Weight (dim, head dim) and bias of one part of a head, in float64, by the names of columns."""
    for name, names in columns(block.kind).items():
        if part in names:
            start, linear = names.index(part) * HEAD_DIM, getattr(block.attn, name)
            chosen = slice(start, start + HEAD_DIM)
            return linear.weight.detach().double()[chosen].T, linear.bias.detach().double()[chosen]
    raise KeyError(part)


def layer_norm(x: Tensor, norm: Any) -> Tensor:
    """By its formula, in float64."""
    centred = x - x.mean(-1, keepdim=True)
    scaled = centred / (centred.square().mean(-1, keepdim=True) + norm.eps).sqrt()
    return scaled * norm.weight.detach().double() + norm.bias.detach().double()


def halves(block: HandBlock) -> tuple[Tensor, Tensor]:
    """The first half of latent value weights (dim, 6) and its bias, in float64."""
    return block.attn.down.weight.detach().double()[3:].T, block.attn.down.bias.detach().double()[3:]


def without_scale(weight: Tensor, norm: Any) -> Tensor:
    """A map (in, features) and the part of a norm after it that is linear, in float64."""
    return (weight - weight.mean(-1, keepdim=True)) * norm.weight.detach().double()


def head_maps(block: HandBlock, h: int) -> tuple[Tensor, Tensor]:
    """Value and output weights of a query head in float64, all that is linear of norms between them folded in."""
    kind, out = block.kind, block.attn.out.weight.detach().double().T
    w_v = head_weights(block, f"v{reads(kind, h)}")[0]
    if kind.latent:
        w_v = without_scale(halves(block)[0], block.attn.narrow_norm) @ w_v
    if kind.value_norm:
        w_v = without_scale(w_v, block.attn.value_norm)
    if kind.heads_norm:
        eye = torch.eye(len(out), dtype=torch.float64)
        out = without_scale(eye, block.attn.heads_norm) @ out
    return w_v * kind.factor, out[h * HEAD_DIM : (h + 1) * HEAD_DIM]


def by_hand(block: HandBlock, x: Tensor) -> dict[str, Tensor]:
    """Every site of a block by arithmetic on its weights, head by head, in float64."""
    kind, x = block.kind, x.double()

    def attention(read: Tensor) -> Tensor:
        heads = []
        for h in range(kind.heads):
            (w_q, b_q), (w_k, b_k), (w_v, b_v) = (
                head_weights(block, part) for part in (f"q{h}", f"k{reads(kind, h)}", f"v{reads(kind, h)}")
            )
            q, k = read @ w_q + b_q, read @ w_k + b_k
            if kind.query_norm:
                q, k = layer_norm(q, block.attn.query_norm), layer_norm(k, block.attn.key_norm)
            scores = q @ k.mT / HEAD_DIM**0.5
            weights = scores.exp()
            if kind.causal:
                weights = weights.tril()
            total = weights.sum(-1, keepdim=True)
            if kind.sink:
                total = total + block.attn.sinks[h].detach().double().exp()
            source = read
            if kind.latent:
                w_down, b_down = halves(block)
                source = layer_norm(read @ w_down + b_down, block.attn.narrow_norm)
            values = source @ w_v + b_v
            if kind.value_norm:
                values = layer_norm(values, block.attn.value_norm)
            mixed = weights / total @ values * kind.factor
            if kind.gated is not None:
                width = HEAD_DIM if kind.gated == "each" else 1
                chosen = slice(5 + h * width, 5 + (h + 1) * width)
                weight, bias = (one.detach().double()[chosen] for one in (block.attn.gate.weight, block.attn.gate.bias))
                grown = (read @ weight.T + bias).exp()
                mixed = mixed * (grown / (1 + grown) if kind.gated == "each" else (1 + grown).log())
            heads.append(mixed)
        side_by_side = torch.cat(heads, dim=-1)
        if kind.heads_norm:
            side_by_side = layer_norm(side_by_side, block.attn.heads_norm)
        return side_by_side @ block.attn.out.weight.detach().double().T + block.attn.out.bias.detach().double()

    def mlp(read: Tensor) -> Tensor:
        first, last = block.mlp[0], block.mlp[2]
        hidden = read @ first.weight.detach().double().T + first.bias.detach().double()
        hidden = hidden * 0.5 * (1 + torch.erf(hidden / 2**0.5))
        return hidden @ last.weight.detach().double().T + last.bias.detach().double()

    def joins(branch: Tensor, number: int) -> Tensor:
        if kind.style in ("sandwich", "output"):
            name = f"out_norm{number}" if kind.style == "sandwich" else f"norm{number}"
            branch = layer_norm(branch, getattr(block, name))
        if kind.gain == "module":
            branch = branch * getattr(block, f"ls{number}").gamma.detach().double()
        if kind.gain in ("weight", "number", "tanh"):
            gamma = getattr(block, f"gamma{number}").detach().double()
            branch = branch * (gamma.tanh() if kind.gain == "tanh" else gamma)
        return branch * kind.scale

    before = kind.style in ("pre", "sandwich", "parallel")
    normed = layer_norm(x, block.norm1) if before else x
    found = {"normed": normed, "attention": joins(attention(normed), 1)}
    middle = x + found["attention"]
    if kind.style == "post":
        middle = layer_norm(middle, block.norm1)
    if kind.style == "parallel":
        found["mlp"] = joins(mlp(normed), 2)
        return {**found, "residual": middle + found["mlp"]}
    found["mid"] = middle
    found["mlp"] = joins(mlp(layer_norm(middle, block.norm2) if before else middle), 2)
    after = middle + found["mlp"]
    return {**found, "residual": layer_norm(after, block.norm2) if kind.style == "post" else after}
