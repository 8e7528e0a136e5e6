from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers import DynamicCache

from tests.remedies.hosts import BY_NAME, LAYERS
from tests.remedies.written_out import CASES, HEADS, blocks_of, exact, exact_call, near, record
from unsmooth.remedies import apply
from unsmooth.remedies.call import Call


@pytest.mark.parametrize(("name", "padded"), CASES)
def test_adds_the_way_back_to_the_first_values(name: str, padded: str | None) -> None:
    model = apply(exact(name), "neutreno")
    call, real = exact_call(name, padded)
    blocks = record(name, model, call)
    for block in blocks:
        pulled = block.map @ block.values_by_head() + 0.6 * (blocks[0].values_by_head() - block.values_by_head())
        near(block.heads, pulled.transpose(1, 2), real)


@pytest.mark.parametrize("learn", ["layer", "head"])
def test_learned_lambda(learn: str) -> None:
    model = apply(exact("llama"), "neutreno", learn=learn)
    assert not list(blocks_of("llama", model)[0].unsmooth.parameters()), "block 0 has nothing to learn"
    lams = [block.unsmooth.neutreno.lam for block in blocks_of("llama", model)[1:]]
    for lam in lams:
        lam.data = torch.rand(lam.shape, dtype=lam.dtype)
    call, _ = exact_call("llama")
    first, *blocks = record("llama", model, call)
    for block, lam in zip(blocks, lams, strict=True):
        weight = lam.detach().expand(HEADS).reshape(HEADS, 1, 1)
        pulled = block.map @ block.values_by_head() + weight * (first.values_by_head() - block.values_by_head())
        near(block.heads, pulled.transpose(1, 2))
    model(**call).logits.square().mean().backward()
    assert all(lam.grad.ne(0).all() for lam in lams)


def test_the_first_block_that_has_it_lends_its_values() -> None:
    call, _ = exact_call("bert")
    for layers, lender in (([0, 2], 0), ([1, 2], 1)):
        blocks = record("bert", apply(exact("bert"), "neutreno", layers=layers), call)
        last = blocks[2]
        pulled = last.map @ last.values_by_head()
        pulled = pulled + 0.6 * (blocks[lender].values_by_head() - last.values_by_head())
        near(last.heads, pulled.transpose(1, 2))
        near(blocks[lender].heads, (blocks[lender].map @ blocks[lender].values_by_head()).transpose(1, 2))


def test_a_shared_block_lends_at_its_first_call() -> None:
    model = BY_NAME["albert"].model().double()
    model.set_attn_implementation("eager")
    apply(model, "neutreno", learn="layer")
    layer = model.encoder.albert_layer_groups[0].albert_layers[0]
    assert layer.unsmooth.neutreno.lam.shape == (1,), "it is called again, so there is something to learn"
    values, heads = [], []
    layer.attention.value.register_forward_hook(lambda module, args, out: values.append(out))
    layer.attention.dense.register_forward_pre_hook(lambda module, args: heads.append(args[0]))
    for _ in range(2):  # and anew in each pass
        values.clear()
        heads.clear()
        with torch.no_grad():
            maps = model(**BY_NAME["albert"].call(BY_NAME["albert"].inputs()), output_attentions=True).attentions
        assert len(values) == LAYERS
        for seen, made, got in zip(maps, values, heads, strict=True):
            mixed = seen.double() @ made.unflatten(-1, (HEADS, 8)).transpose(1, 2)
            near(got, mixed.transpose(1, 2).flatten(2) + 0.6 * (values[0] - made))


@pytest.mark.parametrize("lam", [0.6, 1.5])
def test_spectrum_is_moved_by_lambda(lam: float) -> None:
    # Values that are one-hot tokens, and first values of nothing, make of what a head gives the map itself.
    tokens = 6
    layer = nn.TransformerEncoderLayer(tokens, 1, 8, batch_first=True)
    model = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False).double()
    edit = apply(model, "neutreno", lam=lam).layers[0].unsmooth.neutreno
    torch.manual_seed(0)
    attention = torch.randn(tokens, tokens, dtype=torch.double).softmax(-1)
    values = torch.eye(tokens, dtype=torch.double)[None, :, None]
    shared = {"neutreno.values": torch.zeros_like(values)}
    call = Call(values[:, :, 0], False, None, None, None, shared, values)
    found = torch.linalg.eigvals(edit.on_heads(attention[None, :, None], call)[0, :, 0]).tolist()
    for mu in torch.linalg.eigvals(attention).tolist():
        assert min(abs(mu - lam - other) for other in found) < 1e-10


def test_decoding_keeps_nothing() -> None:
    host = BY_NAME["llama"]
    model, inputs = apply(host.model(), "neutreno"), host.inputs()
    cache, steps = DynamicCache(config=model.config), []
    with torch.no_grad():
        full = model(input_ids=inputs, use_cache=False).logits
        for place in range(inputs.shape[1]):
            step = model(input_ids=inputs[:, place : place + 1], past_key_values=cache, use_cache=True)
            steps.append(step.logits)
    near(torch.cat(steps, 1), full, tolerance=1e-5)
    assert not any(hasattr(layer, "remembered") for layer in cache.layers)


def test_gradients_flow_into_the_first_values() -> None:
    # Were they cut there, what the last block's term asks of block 0 would be missing.
    model = apply(exact("vit"), "neutreno", layers=[0, 2])
    model.set_attn_implementation("sdpa")  # the other one rounds its maps to float32
    call, _ = exact_call("vit")
    weight = blocks_of("vit", model)[0].attention.v_proj.weight
    weight.requires_grad_(True)

    def loss() -> torch.Tensor:
        return model(**call).last_hidden_state[..., 0].square().sum()

    loss().backward()
    step = 1e-6
    with torch.no_grad():
        weight[3, 4] += step
        above = loss()
        weight[3, 4] -= 2 * step
        below = loss()
    near(weight.grad[3, 4], (above - below) / (2 * step), tolerance=1e-6)


def test_neutral_at_zero_and_learned_numbers_from_there() -> None:
    host = BY_NAME["gpt2"]
    call = host.call(host.inputs())
    plain = host.output(host.model(), call)
    for learn in ("no", "layer", "head"):
        assert torch.equal(host.output(apply(host.model(), "neutreno", lam=0.0, learn=learn), call), plain)
