from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache, MistralConfig, MistralForCausalLM

from tests.remedies.hosts import BY_NAME, SPECIAL
from tests.remedies.written_out import CASES, HEADS, blocks_of, exact, exact_call, near, record, set_all
from unsmooth import networks
from unsmooth.errors import UnsmoothError
from unsmooth.remedies import apply
from unsmooth.remedies.call import Call
from unsmooth.remedies.mixing import TorchMix


def filtered(maps: Tensor, w_0: Tensor, w_1: Tensor, w_K: Tensor, order: int) -> Tensor:
    """The polynomial of the map, formed."""
    w_0, w_1, w_K = (weight.expand(HEADS).reshape(HEADS, 1, 1) for weight in (w_0, w_1, w_K))
    powered = maps + (order - 1) * (maps @ maps - maps)
    return w_0 * torch.eye(maps.shape[-1], dtype=maps.dtype) + w_1 * maps + w_K * powered


@pytest.mark.parametrize(("name", "padded"), CASES)
def test_mixes_by_the_polynomial(name: str, padded: str | None) -> None:
    model = apply(exact(name), "gfsa", order=5)
    weights = set_all(name, model, "gfsa", w_0=0.5, w_1=0.5, w_K=0.5)
    call, real = exact_call(name, padded)
    for block, given in zip(record(name, model, call), weights, strict=True):
        near(block.heads, (filtered(block.map, order=5, **given) @ block.values_by_head()).transpose(1, 2), real)


def test_official_variant_learns_the_last_weight_only() -> None:
    model = apply(exact("bert"), "gfsa", w0=-0.2, start=0.4, variant="official")
    edit = blocks_of("bert", model)[0].unsmooth.gfsa
    assert [name for name, _ in edit.named_parameters()] == ["w_K"]
    call, _ = exact_call("bert")
    one = torch.ones(1, dtype=torch.double)
    for block in record("bert", model, call):
        wanted = filtered(block.map, -0.2 * one, one, 0.4 * one, 4) @ block.values_by_head()
        near(block.heads, wanted.transpose(1, 2))


def test_torch_and_own_networks() -> None:
    for name, path in (("torch_pre", "layers.1.self_attn"), ("own_decoder", "stack.blocks.1.attention")):
        host = BY_NAME[name]
        model: Any = apply(host.model().double(), "gfsa", w0=0.1, start=0.7, order=3)
        attention = model.get_submodule(path)
        read, heads = [], []
        attention.register_forward_pre_hook(lambda module, args, read=read: read.append(args[0]))
        last = attention.heads if name == "torch_pre" else attention.out
        last.register_forward_pre_hook(lambda module, args, heads=heads: heads.append(args[0]))
        inputs = host.inputs()
        host.output(model, host.call(inputs.double() if host.kind == "vectors" else inputs))
        weight, bias = (
            (attention.in_proj_weight, attention.in_proj_bias)
            if name == "torch_pre"
            else (attention.qkv.weight, attention.qkv.bias)
        )
        q, k, v = (read[0] @ weight.T + bias).unflatten(-1, (3, HEADS, 8)).permute(2, 0, 3, 1, 4)
        logits = q @ k.mT / 8**0.5
        if name == "own_decoder":
            logits = logits.masked_fill(torch.ones_like(logits).triu(1).bool(), -torch.inf)
        weights = (torch.tensor([number], dtype=torch.double) for number in (0.1, 1.0, 0.7))
        wanted = filtered(logits.softmax(-1), *weights, 3) @ v
        near(heads[0], wanted.transpose(1, 2).flatten(2))


def test_spectrum() -> None:
    # Values that are one-hot tokens make of what a head gives the map itself.
    edit = apply(exact("vit"), "gfsa", order=6).layers[0].unsmooth.gfsa
    given = {"w_0": 0.3, "w_1": 0.8, "w_K": -0.4}
    for name, number in given.items():
        getattr(edit, name).data.fill_(number)
    torch.manual_seed(0)
    query, key = torch.randn(2, 1, HEADS, 7, 8, dtype=torch.double)
    eye = torch.eye(7, dtype=torch.double).expand(1, HEADS, 7, 7)
    call = Call(query[:, 0], causal=False, real_BN=None, starts_BN=None, memory=None, shared={})
    found = torch.linalg.eigvals(edit.on_mixing(TorchMix(query, key, eye), call)[0, 1]).tolist()
    for mu in torch.linalg.eigvals((query @ key.mT / 8**0.5).softmax(-1)[0, 1]).tolist():
        wanted = 0.3 + 0.8 * mu - 0.4 * (mu + 5 * (mu**2 - mu))
        assert min(abs(wanted - other) for other in found) < 1e-10


def test_decoding_within_a_window() -> None:
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    tokens = {"vocab_size": 50, "intermediate_size": 48, "sliding_window": 3, "pad_token_id": 1, **SPECIAL}
    torch.manual_seed(0)
    model = apply(MistralForCausalLM(MistralConfig(**sizes, **tokens)).eval(), "gfsa", start=0.8)
    inputs = torch.randint(5, 50, (2, 9))
    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        full = model(input_ids=inputs, use_cache=False).logits
        steps = [
            model(input_ids=part, past_key_values=cache, use_cache=True).logits
            for part in inputs.split([2, 3, 1, 1, 1, 1], dim=1)
        ]
    near(torch.cat(steps, 1), full, tolerance=1e-5)


def test_what_was_not_mixed_in_the_call_is_asked_for() -> None:
    config = networks.DecoderConfig(vocabulary=9, depth=1, dim=8, heads=2, hidden=8, length=4)
    model = apply(networks.Decoder(config).eval(), "gfsa")
    segment = torch.tensor([[1, 2, 3, 4]])
    with pytest.raises(UnsmoothError, match="keys of tokens that are not in this call"):
        model(segment, model.start_memory(1, length=4))  # which the configuration knows nothing of
