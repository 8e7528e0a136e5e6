from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.remedies.by_hand import rotate
from tests.remedies.hosts import BY_NAME
from tests.remedies.written_out import blocks_of, exact, exact_call, near, set_all
from unsmooth.errors import UnsmoothError
from unsmooth.remedies import applied, apply


def heads_and_parts(name: str, model: Any) -> list[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """By block: what the heads give (batch, heads, tokens, dim), and queries, keys and values, each by query head."""
    call, _ = exact_call(name)
    found = []
    for block in blocks_of(name, model):
        attention = block.attn if name == "gpt2" else block.self_attn
        made: list[Tensor] = []
        attention.register_forward_pre_hook(
            lambda module, args, kwargs, made=made: made.append(args[0] if args else kwargs["hidden_states"]),
            with_kwargs=True,
        )
        last = attention.c_proj if name == "gpt2" else attention.o_proj
        last.register_forward_pre_hook(lambda module, args, made=made: made.append(args[0]))
        found.append((attention, made))
    with torch.no_grad():
        model(**call)
        return [_parts(name, attention, *made) for attention, made in found]


def _parts(name: str, attention: Any, read: Tensor, heads: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    if name == "gpt2":
        made = [part.unflatten(-1, (4, 8)) for part in attention.c_attn(read).chunk(3, -1)]
    else:
        made = [getattr(attention, f"{one}_proj")(read).unflatten(-1, (-1, 8)) for one in "qkv"]
        made = [rotate(made[0], 8), *(part.repeat_interleave(2, 2) for part in (rotate(made[1], 8), made[2]))]
    query, key, value = (part.transpose(1, 2) for part in made)
    return heads.unflatten(-1, (4, 8)).transpose(1, 2), query, key, value


def causal_map(query: Tensor, key: Tensor) -> Tensor:
    logits = query @ key.mT / query.shape[-1] ** 0.5
    return logits.masked_fill(torch.ones_like(logits).triu(1).bool(), -torch.inf).softmax(-1)


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_the_papers_form(name: str) -> None:
    model = apply(exact(name), "differential")
    weights = set_all(name, model, "differential", vectors=0.5, gain=1.0)
    for layer, (got, query, key, value) in enumerate(heads_and_parts(name, model)):
        q_1, k_1, q_2, k_2 = weights[layer]["vectors"]
        start = 0.8 - 0.6 * math.exp(-0.3 * layer)
        share = torch.exp(q_1 @ k_1) - torch.exp(q_2 @ k_2) + start
        maps = causal_map(query[..., ::2], key[..., ::2]) - share * causal_map(query[..., 1::2], key[..., 1::2])
        mixed = maps @ value
        normed = mixed / (mixed.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weights[layer]["gain"]
        # Llama rounds maps, norms and positions to float32.
        near(got, (1 - start) * normed, tolerance=1e-4 if name == "llama" else 1e-10)


def test_the_hosts_own_map_kept() -> None:
    model = apply(exact("gpt2"), "differential", form="kept", lam=0.3, learn="head", norm=False)
    weights = set_all("gpt2", model, "differential", lam=0.5)
    for (got, query, key, value), given in zip(heads_and_parts("gpt2", model), weights, strict=True):
        second = causal_map(query[..., 1::2], key[..., 1::2])
        near(got, (causal_map(query, key) - given["lam"].view(4, 1, 1) * second) @ value, tolerance=1e-10)


def test_fixed_share() -> None:
    model = apply(exact("gpt2"), "differential", lam=0.25, learn="no", norm=False)
    assert not [name for name, _ in model.named_parameters() if "differential" in name]
    got, query, key, value = heads_and_parts("gpt2", model)[0]
    maps = causal_map(query[..., ::2], key[..., ::2]) - 0.25 * causal_map(query[..., 1::2], key[..., 1::2])
    near(got, maps @ value, tolerance=1e-10)
    near(maps.sum(-1), torch.full_like(maps[..., 0], 0.75), tolerance=1e-10)  # the token mean


@pytest.mark.parametrize(
    ("options", "message"),
    [({"form": "half"}, "form"), ({"lam": 2}, "lam"), ({"learn": "token"}, "learn"), ({"norm": 1}, "norm")],
)
def test_bad_options_are_named(options: dict[str, object], message: str) -> None:
    model = BY_NAME["bert"].model()
    with pytest.raises(UnsmoothError, match=message):
        apply(model, "differential", **options)
    assert applied(model) == []


def test_heads_without_a_half_are_refused() -> None:
    odd = nn.TransformerEncoder(nn.TransformerEncoderLayer(6, 2, batch_first=True), 1, enable_nested_tensor=False)
    with pytest.raises(UnsmoothError, match="3 wide"):
        apply(odd, "differential")
