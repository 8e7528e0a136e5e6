from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache

from tests.remedies.hosts import BY_NAME, DIM, TOKENS
from tests.remedies.written_out import CASES, blocks_of, exact, exact_call, may_see, near, record, set_all, uniform
from unsmooth.errors import UnsmoothError
from unsmooth.remedies import applied, apply, undo
from unsmooth.remedies.call import Call

POST_NORM = ("bert",)


def likeness(x: Tensor, seen: Tensor, temperature: float = 1.0) -> Tensor:
    """Exp of the cosine over T of each pair, where one may see the other."""
    unit = x / x.norm(dim=-1, keepdim=True)
    return (unit @ unit.mT / temperature).exp() * seen


def spread(x: Tensor, seen: Tensor, scale: Any = 0.3, identity: bool = False, temperature: float = 1.0) -> Tensor:
    raw = likeness(x, seen, temperature)
    alike = raw / raw.sum(-1, keepdim=True).clamp(min=1e-300) @ x
    return (1 + scale) * x - scale * alike if identity else x - scale * alike


@pytest.mark.parametrize(("name", "padded"), CASES)
def test_paper_edits_what_attention_s_norm_reads(name: str, padded: str | None) -> None:
    model = apply(exact(name), "contranorm", scale=0.3, temperature=0.5)
    call, real = exact_call(name, padded)
    seen = may_see(name, real)
    for block in record(name, model, call):
        near(block.read[0], spread(block.unread[0], seen, temperature=0.5), real)
        assert torch.equal(block.read[1], block.unread[1])


@pytest.mark.parametrize(("name", "padded"), CASES)
def test_official_has_the_identity_for_bert_and_both_norms_for_vit(name: str, padded: str | None) -> None:
    model = apply(exact(name), "contranorm", scale=0.3, variant="official")
    call, real = exact_call(name, padded)
    seen, post_norm = may_see(name, real), name in POST_NORM
    for block in record(name, model, call):
        near(block.read[0], spread(block.unread[0], seen, identity=post_norm), real)
        wanted = block.unread[1] if post_norm else spread(block.unread[1], seen)
        near(block.read[1], wanted, real)


def test_the_stream_of_pre_norm_blocks_goes_on_as_it_was() -> None:
    call, _ = exact_call("vit")
    first = record("vit", apply(exact("vit"), "contranorm", scale=0.3, variant="official"), call)[0]
    near(first.unread[1], first.stream + first.branch)


def test_official_on_albert_has_no_identity() -> None:
    host = BY_NAME["albert"]
    model = apply(host.model().double(), "contranorm", scale=0.3, variant="official")
    norm = model.encoder.albert_layer_groups[0].albert_layers[0].attention.LayerNorm
    read, unread = [], []
    norm.register_forward_pre_hook(lambda module, args: unread.append(args[0]), prepend=True)
    norm.register_forward_pre_hook(lambda module, args: read.append(args[0]))
    with torch.no_grad():
        model(**host.call(host.inputs()))
    for got, x in zip(read, unread, strict=True):
        near(got, spread(x, torch.ones(2, TOKENS, TOKENS)))


OUTPUTS = {
    "attention": "attention.output.dropout",
    "mlp": "output.dropout",
    "after_attention_norm": "attention.output.LayerNorm",
    "after_mlp_norm": "output.LayerNorm",
}


@pytest.mark.parametrize("place", OUTPUTS)
def test_outputs_can_be_edited_too(place: str) -> None:
    model = apply(exact("bert"), "contranorm", scale=0.3, place=place)
    module = blocks_of("bert", model)[1].get_submodule(OUTPUTS[place])
    before, after = [], []
    module.register_forward_hook(lambda module, args, out: before.append(out.clone()), prepend=True)
    module.register_forward_hook(lambda module, args, out: after.append(out))
    call, real = exact_call("bert", "left")
    with torch.no_grad():
        model(**call)
    near(after[0], spread(before[0], may_see("bert", real)), real)


@pytest.mark.parametrize("name", ["bert", "vit"])
@pytest.mark.parametrize("unit", [False, True])
def test_dual_is_divided_by_rows_and_by_columns(name: str, unit: bool) -> None:
    model = apply(exact(name), "contranorm", scale=0.3, dual=True, unit=unit, temperature=0.4)
    call, real = exact_call(name, None if name == "vit" else "right")
    seen = may_see(name, real)
    for block in record(name, model, call):
        x = block.unread[0]
        raw = likeness(x, seen, 0.4)
        columns = (raw * real[..., None]).sum(-2, keepdim=True)  # padding is in no sum
        both = raw / raw.sum(-1, keepdim=True) + raw / columns.clamp(min=1e-300)
        base = x / x.norm(dim=-1, keepdim=True) if unit else x
        near(block.read[0], base - 0.3 * both @ base, real)


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_unit_puts_tokens_at_length_one(name: str) -> None:
    model = apply(exact(name), "contranorm", scale=0.3, unit=True)
    call, real = exact_call(name)
    seen = may_see(name, real)
    for block in record(name, model, call):
        unit = block.unread[0] / block.unread[0].norm(dim=-1, keepdim=True)
        near(block.read[0], spread(unit, seen), real)


def test_learned_scale_of_each_channel() -> None:
    call, real = exact_call("llama")
    seen = may_see("llama", real)
    for learn, identity in (("channel", False), ("channel", True), ("positive", False)):
        model = apply(exact("llama"), "contranorm", learn=learn, identity=identity)
        start = next(iter(blocks_of("llama", model))).unsmooth.contranorm.scale.detach()
        near(start.exp() if learn == "positive" else start, torch.full((DIM,), 0.05, dtype=torch.double))
        chosen = set_all("llama", model, "contranorm", scale=0.5)
        for block, numbers in zip(record("llama", model, call), chosen, strict=True):
            scale = numbers["scale"].exp() if learn == "positive" else numbers["scale"]
            near(block.read[0], spread(block.unread[0], seen, scale, identity))
        model(**call).logits.square().mean().backward()
        assert all(block.unsmooth.contranorm.scale.grad.ne(0).all() for block in blocks_of("llama", model))


def test_official_code_for_vit_leaves_out_the_one_where_the_identity_has_a_learned_scale() -> None:
    options = {"learn": "channel", "identity": True}
    model = apply(exact("vit"), "contranorm", variant="official", **options)
    chosen = set_all("vit", model, "contranorm", scale=0.5)
    call, real = exact_call("vit")
    seen = may_see("vit", real)
    for block, numbers in zip(record("vit", model, call), chosen, strict=True):
        x = block.unread[0]
        near(block.read[0], spread(x, seen, numbers["scale"], identity=True) - x)


def test_equal_tokens_stay_with_the_identity_and_shrink_without() -> None:
    x = torch.randn(1, 1, DIM, dtype=torch.double).expand(1, 5, DIM)
    for identity, wanted in ((True, x), (False, 0.7 * x)):
        model = apply(exact("bert"), "contranorm", scale=0.3, identity=identity, place="attention")
        edit = blocks_of("bert", model)[0].unsmooth.contranorm
        near(edit.on_attention(x, Call(x, False, None, None, None, {})), wanted)


@pytest.mark.parametrize("options", [{}, {"learn": "channel"}, {"place": "norms", "identity": True}, {"unit": True}])
@pytest.mark.parametrize("name", ["bert", "llama"])
def test_neutral_at_zero(name: str, options: dict[str, Any]) -> None:
    host = BY_NAME[name]
    call = host.call(host.inputs())
    plain = host.output(host.model(), call)
    assert torch.equal(host.output(apply(host.model(), "contranorm", scale=0.0, **options), call), plain)


def test_packed_sequences_do_not_meet() -> None:
    host = BY_NAME["llama"]
    model, inputs = apply(host.model(), "contranorm", scale=0.5, place="norms"), host.inputs()
    places = torch.arange(TOKENS).repeat(2)[None]
    with torch.no_grad():
        packed = model(input_ids=inputs.reshape(1, -1), position_ids=places, use_cache=False).logits
        apart = model(input_ids=inputs).logits
    near(packed.reshape(apart.shape), apart, tolerance=1e-5)


@pytest.mark.parametrize("padded", [None, "left"])
def test_decoding_remembers_the_tokens_of_each_place(padded: str | None) -> None:
    host = BY_NAME["gpt2"]
    model = apply(host.model(), "contranorm", scale=0.5, place="norms")
    call, real = exact_call("gpt2", padded)
    cache, steps = DynamicCache(config=model.config), []
    with torch.no_grad():
        full = model(**call, use_cache=False).logits
        for start, size in ((0, 3), (3, 1), (4, 4)):
            now = {key: value[:, start : start + size] for key, value in call.items()}
            if padded:
                now["attention_mask"] = call["attention_mask"][:, : start + size]
            steps.append(model(**now, past_key_values=cache, use_cache=True).logits)
    near(torch.cat(steps, 1), full, real, tolerance=1e-5)
    for layer in cache.layers:
        kept = {key: tuple(value.shape) for key, value in layer.remembered.items() if key.endswith("tokens")}
        assert kept == {f"contranorm.{norm}.tokens": (2, TOKENS, DIM) for norm in ("attention_norm", "mlp_norm")}


def test_dual_is_refused_by_decoders() -> None:
    model = BY_NAME["gpt2"].model()
    with pytest.raises(UnsmoothError, match="causal form"):
        apply(model, "contranorm", dual=True)
    assert applied(model) == []
    with pytest.warns(UserWarning, match="leak"):
        apply(model, "contranorm", dual=True, allow_leak=True)
    inputs = BY_NAME["gpt2"].inputs()
    other = inputs.clone()
    other[:, -1] = (inputs[:, -1] - 4) % 45 + 5
    with torch.no_grad():
        assert not torch.allclose(model(inputs).logits[:, 0], model(other).logits[:, 0])


def test_undo_takes_the_hooks_of_the_norms_away() -> None:
    host = BY_NAME["bert"]
    plain, model = host.model(), host.model()
    call = host.call(host.inputs())
    undo(apply(model, "contranorm", scale=0.5, place="norms"))
    assert torch.equal(host.output(model, call), host.output(plain, call))
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_stacks_with_a_remedy_of_the_heads() -> None:
    model = apply(apply(exact("llama"), "contranorm", scale=0.3), "attnscale", omega=0.4)
    call, real = exact_call("llama")
    seen = may_see("llama", real)
    mean = uniform(seen)[:, None]
    for block in record("llama", model, call):
        near(block.read[0], spread(block.unread[0], seen))
        near(block.heads, ((1.4 * block.map - 0.4 * mean) @ block.values_by_head()).transpose(1, 2))


@pytest.mark.parametrize("options", [{}, {"unit": True}, {"dual": True}])
def test_padding_of_zeros_in_float16(options: dict[str, Any]) -> None:
    host = BY_NAME["torch_pre"]
    model = apply(host.model().half(), "contranorm", scale=0.5, **options)
    real = torch.arange(TOKENS) < torch.tensor([[TOKENS], [5]])
    inputs = host.inputs().half().where(real[:, :, None], 0)
    with torch.no_grad():
        alone = host.output(model, host.call(inputs[1:, :5]))
        padded = model(inputs, src_key_padding_mask=~real)
    near(padded[1:, :5], alone, tolerance=5e-2)
