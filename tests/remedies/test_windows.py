"""Edits of attention's mixing inside Swin's windows, written out in float64: shifted, filled up, by position."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

from tests.remedies.snapshot import Snapshot
from unsmooth import remedies
from unsmooth.errors import UnsmoothError

# Ten patches a side, and five in the second stage, fill no whole number of windows of four: zeros fill them up.
SIDE, WINDOW = 10, 4
Maps = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def swin(attention: str, seed: int = 0) -> Any:
    """Two stages in float64: one block in windows as they lie, one in shifted ones, and after a stage one more."""
    sizes = {"image_size": SIDE, "patch_size": 1, "embed_dim": 16, "depths": [2, 1], "num_heads": [2, 4]}
    config = transformers.SwinConfig(window_size=WINDOW, mlp_ratio=1.5, drop_path_rate=0.0, **sizes)
    torch.manual_seed(seed)
    model = transformers.SwinModel(config, add_pooling_layer=False).eval().double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    model.set_attn_implementation(attention)
    return model


def blocks_of(model: Any) -> list[Any]:
    return [block for stage in model.encoder.layers for block in stage.blocks]


@dataclass
class Seen:
    """What a block's attention reads in the image's own order, and the branch that it gives: (batch, tokens, dim)."""

    read: Tensor
    branch: Tensor


@torch.no_grad()
def seen_in(model: Any) -> list[Seen]:
    found: list[dict[str, Tensor]] = []
    handles = []
    for block in blocks_of(model):
        kept: dict[str, Tensor] = {}
        found.append(kept)
        norm, branch = block.layernorm_before, block.drop_path
        handles += [
            norm.register_forward_hook(lambda module, args, output, kept=kept: kept.update(read=output)),
            branch.register_forward_hook(lambda module, args, output, kept=kept: kept.update(branch=output)),
        ]
    pixels = torch.randn(2, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(5)).double()
    model(pixel_values=pixels)
    for handle in handles:
        handle.remove()
    return [Seen(**kept) for kept in found]


@torch.no_grad()
def by_hand(block: Any, seen: Seen, shift: int, mixed: Maps) -> Tensor:
    """The branch, window by window and token by token as the paper has them, with what `mixed` makes of a window.

    Args:
        block: Whose weights are read.
        seen: What its attention read.
        shift: By how many patches its windows are shifted.
        mixed: Of queries, keys and values (heads, tokens, head dim), biases of positions (heads, tokens, tokens) with
            -inf for what is hidden.
    """
    attention, batch = block.attention, len(seen.read)
    side = math.isqrt(seen.read.shape[1])
    whole = -(-side // WINDOW) * WINDOW
    image = torch.zeros(batch, whole, whole, seen.read.shape[2], dtype=torch.double)
    image[:, :side, :side] = seen.read.view(batch, side, side, -1)
    out = torch.zeros_like(image)
    heads = attention.num_attention_heads
    offsets = range(WINDOW)
    for top in range(0, whole, WINDOW):
        for left in range(0, whole, WINDOW):
            rows = [top + y + shift for y in offsets for _ in offsets]
            columns = [left + x + shift for _ in offsets for x in offsets]
            # A window over the edge goes on at the other side, which it may not look at from here.
            regions = [(y >= whole, x >= whole) for y, x in zip(rows, columns, strict=True)]
            apart = torch.tensor([[one != other for other in regions] for one in regions])
            at = ([y % whole for y in rows], [x % whole for x in columns])
            for row in range(batch):
                tokens = image[row][at]
                q, k, v = (
                    nn.functional.linear(tokens, part.weight, part.bias).unflatten(-1, (heads, -1)).transpose(0, 1)
                    for part in (attention.q_proj, attention.k_proj, attention.v_proj)
                )
                bias = position_bias(attention).masked_fill(apart, -torch.inf)
                out[row][at] = mixed(q, k, v, bias).transpose(0, 1).flatten(1)
    out = out[:, :side, :side].flatten(1, 2)
    return nn.functional.linear(out, attention.o_proj.weight, attention.o_proj.bias)


def position_bias(attention: Any) -> Tensor:
    """(heads, queries, keys): by how many rows and columns a query is further than a key."""
    table = attention.relative_position_bias.relative_position_bias_table
    places = [(y, x) for y in range(WINDOW) for x in range(WINDOW)]
    far, wide = WINDOW - 1, 2 * WINDOW - 1
    index = [[(a - c + far) * wide + b - d + far for c, d in places] for a, b in places]
    return table[torch.tensor(index)].permute(2, 0, 1)


def plain_map(q: Tensor, k: Tensor, bias: Tensor) -> Tensor:
    return (q @ k.mT / q.shape[-1] ** 0.5 + bias).softmax(-1)


def check(model: Any, mixed: Callable[[Any], Maps]) -> None:
    """`mixed` is asked with each block, for what it does there."""
    for block, seen, shift in zip(blocks_of(model), seen_in(model), (0, WINDOW // 2, 0), strict=True):
        # Where Swin forms its maps it rounds them to float32.
        near = 1e-5 if model.config._attn_implementation == "eager" else 1e-10
        torch.testing.assert_close(seen.branch, by_hand(block, seen, shift, mixed(block)), atol=near, rtol=near)


each_attention = pytest.mark.parametrize("attention", ["sdpa", "eager"])


@each_attention
def test_plain(attention: str) -> None:
    """What is written out here is Swin."""
    check(swin(attention), lambda block: lambda q, k, v, bias: plain_map(q, k, bias) @ v)


@torch.no_grad()
def draw(edit: nn.Module, size: float) -> Any:
    generator = torch.Generator().manual_seed(7)
    for parameter in edit.parameters():
        parameter.copy_(size * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype))
    return edit


@each_attention
def test_gfsa(attention: str) -> None:
    model = remedies.apply(swin(attention), "gfsa", order=5)

    def mixed(block: Any) -> Maps:
        edit = block.unsmooth.gfsa
        w_0, w_1, w_K = (weight.view(-1, 1, 1) for weight in (edit.w_0, edit.w_1, edit.w_K))

        def of(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
            once = plain_map(q, k, bias)
            eye = torch.eye(once.shape[-1], dtype=torch.double)
            return (w_0 * eye + w_1 * once + w_K * (once + 4 * (once @ once - once))) @ v

        return of

    for block in blocks_of(model):
        draw(block.unsmooth.gfsa, 0.5)
    check(model, mixed)


@each_attention
def test_talking_heads(attention: str) -> None:
    """Heads get no part of a token that a shifted window holds of elsewhere, however logits are mixed."""
    model = remedies.apply(swin(attention), "talking_heads")

    def mixed(block: Any) -> Maps:
        edit = block.unsmooth.talking_heads

        def of(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
            hidden = bias.isinf()
            logits = q @ k.mT / q.shape[-1] ** 0.5 + bias.masked_fill(hidden, 0.0)
            maps = torch.einsum("hg,gnm->hnm", edit.logits, logits).masked_fill(hidden, -torch.inf).softmax(-1)
            maps = torch.einsum("hg,gnm->hnm", edit.maps, maps) + edit.bias.view(-1, 1, 1)
            return maps.masked_fill(hidden, 0.0) @ v

        return of

    for block in blocks_of(model):
        draw(block.unsmooth.talking_heads, 0.5)
    check(model, mixed)


@each_attention
def test_differential(attention: str) -> None:
    model = remedies.apply(swin(attention), "differential", lam=0.4, learn="head")

    def mixed(block: Any) -> Maps:
        edit = block.unsmooth.differential

        def of(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
            first, second = (plain_map(q[..., part::2], k[..., part::2], bias) for part in (0, 1))
            heads = (first - edit.lam.view(-1, 1, 1) * second) @ v
            size = (heads.square().mean(-1, keepdim=True) + 1e-5).sqrt()
            return heads / size * edit.gain * 0.6

        return of

    for block in blocks_of(model):
        draw(block.unsmooth.differential, 0.5)
    check(model, mixed)


@pytest.mark.parametrize("name", ["centred", "shaped", "attnscale"])
def test_what_looks_across_a_window_by_itself_is_refused(name: str) -> None:
    model = swin("sdpa")
    before = Snapshot.of(model)
    with pytest.raises(UnsmoothError, match="those of one window, shifted and filled up"):
        remedies.apply(model, name)
    with pytest.raises(UnsmoothError, match="its attention is not causal"):
        remedies.apply(model, "spa")
    before.check(model)


def test_mixing_that_does_not_keep_to_the_map_is_refused() -> None:
    """A remedy of somebody else's that takes a mean of all values, say."""

    class Mean(remedies.REMEDIES["gfsa"]):  # type: ignore[misc]
        name = "mean"
        causal = "prefix mean"

    model = swin("sdpa")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("unsmooth.remedies.verbs.find_remedy", lambda name: Mean)
        with pytest.raises(UnsmoothError, match="those of one window, shifted and filled up"):
            remedies.apply(model, "mean")
