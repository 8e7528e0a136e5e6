from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.remedies.written_out import (
    CASES,
    HEADS,
    blocks_of,
    exact,
    exact_call,
    may_see,
    near,
    record,
    set_all,
    uniform,
)
from unsmooth.remedies import apply
from unsmooth.remedies.call import Call


@pytest.mark.parametrize(("name", "padded"), CASES)
def test_is_the_centred_map_times_the_values(name: str, padded: str | None) -> None:
    model = apply(exact(name), "centred")
    call, real = exact_call(name, padded)
    mean = uniform(may_see(name, real))[:, None]
    for block in record(name, model, call):
        centred = block.map - mean
        assert centred.sum(-1).transpose(1, 2)[real].abs().max() < 1e-6
        near(block.heads, (centred @ block.values_by_head()).transpose(1, 2), real)


@pytest.mark.parametrize("name", ["bert", "llama"])
@pytest.mark.parametrize("learn", ["layer", "head"])
def test_learned_tau(name: str, learn: str) -> None:
    model = apply(exact(name), "centred", learn=learn)
    chosen = set_all(name, model, "centred", tau=0.7)
    call, real = exact_call(name)
    mean = uniform(may_see(name, real))[:, None]
    for block, numbers in zip(record(name, model, call), chosen, strict=True):
        centred = block.map - numbers["tau"].expand(HEADS).reshape(1, HEADS, 1, 1) * mean
        near(block.heads, (centred @ block.values_by_head()).transpose(1, 2))


@pytest.mark.parametrize("tau", [1.0, 0.4])
def test_takes_tau_off_the_eigenvalue_of_the_token_mean_alone(tau: float) -> None:
    # Values that are one-hot tokens make of what a head gives the map itself.
    tokens = 6
    layer = nn.TransformerEncoderLayer(tokens, 1, 8, batch_first=True)
    model = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False).double()
    edit = apply(model, "centred", tau=tau).layers[0].unsmooth.centred
    torch.manual_seed(0)
    attention = torch.randn(tokens, tokens, dtype=torch.double).softmax(-1)
    values = torch.eye(tokens, dtype=torch.double)[None, :, None]
    got = edit.on_heads(attention[None, :, None], Call(values[:, :, 0], False, None, None, None, {}, values))[0, :, 0]
    one, *rest = sorted(torch.linalg.eigvals(attention).tolist(), key=abs, reverse=True)
    found = torch.linalg.eigvals(got).tolist()
    for eigenvalue in [one - tau, *rest]:
        assert min(abs(eigenvalue - other) for other in found) < 1e-10


def test_in_a_decoder_eigenvalues_are_those_of_the_diagonal_less_one_over_the_place() -> None:
    tokens = 5
    layer = nn.TransformerEncoderLayer(tokens, 1, 8, batch_first=True)
    model = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False).double()
    edit = apply(model, "centred").layers[0].unsmooth.centred
    torch.manual_seed(0)
    logits = torch.randn(tokens, tokens, dtype=torch.double)
    attention = logits.masked_fill(torch.ones(tokens, tokens).triu(1).bool(), float("-inf")).softmax(-1)
    values = torch.eye(tokens, dtype=torch.double)[None, :, None]
    got = edit.on_heads(attention[None, :, None], Call(values[:, :, 0], True, None, None, None, {}, values))[0, :, 0]
    near(got.triu(1), torch.zeros_like(got))
    near(got.diagonal(), attention.diagonal() - 1 / torch.arange(1.0, tokens + 1).double())


def test_in_an_encoder_it_is_deescalation_of_the_values_and_in_a_decoder_it_is_not() -> None:
    for name, alike in (("bert", True), ("gpt2", False)):
        call, _ = exact_call(name)
        with torch.no_grad():
            one = apply(exact(name), "centred", tau=0.6)(**call)[0]
            other = apply(exact(name), "deescalate", place="values", tau=0.6)(**call)[0]
        # The libraries' own softmax is in float32 here.
        assert torch.allclose(one, other, atol=1e-5) == alike


def test_a_small_tau_survives_bfloat16() -> None:
    model = apply(exact("bert").bfloat16(), "centred", tau=0.001, learn="head")
    edit = blocks_of("bert", model)[0].unsmooth.centred
    heads, values = torch.full((1, 4, 4, 8), 1.0, dtype=torch.bfloat16), torch.full((1, 4, 4, 8), -1000.0).bfloat16()
    moved = edit.on_heads(heads, Call(values[:, :, 0], False, None, None, None, {}, values)).float() - 1.0
    near(moved, torch.full_like(moved, 1.0), tolerance=0.02)
