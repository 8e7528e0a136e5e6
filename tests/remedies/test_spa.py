from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.remedies.hosts import BY_NAME, TOKENS
from tests.remedies.written_out import blocks_of, exact, exact_call, near, record
from unsmooth.errors import UnsmoothError
from unsmooth.remedies import applied, apply
from unsmooth.remedies.catalogue.spa import exponential_map, uniform_map

MAPS = {"uniform": uniform_map, "exponential": exponential_map}


def wanted_similarity(kind: str, amount: float, tokens: int) -> Tensor:
    """Σ, with ones on its diagonal."""
    place = torch.arange(tokens, dtype=torch.double)
    if kind == "uniform":
        return torch.full((tokens, tokens), amount, dtype=torch.double).fill_diagonal_(1.0)
    return amount ** (place[:, None] - place).abs()


def by_cholesky(kind: str, before: float, after: float, tokens: int) -> Tensor:
    """The map of one layer, from the factors of both similarities."""
    old, new = (torch.linalg.cholesky(wanted_similarity(kind, amount, tokens)) for amount in (before, after))
    return new @ torch.linalg.inv(old)


@pytest.mark.parametrize("kind", ["uniform", "exponential"])
@pytest.mark.parametrize(("before", "after"), [(0.0, 0.3), (0.3, 0.4), (0.9, 0.95)])
def test_closed_forms_are_the_factors(kind: str, before: float, after: float) -> None:
    place, wanted = torch.arange(40), by_cholesky(kind, before, after, 40)
    logs, rows = MAPS[kind](before, after, 40, place[:, None], place)
    near(logs.exp().tril(), wanted, tolerance=1e-10)
    near(rows[:, 0], wanted.sum(-1), tolerance=1e-10)
    assert (wanted.tril() >= -1e-12).all(), "entries are weights"
    old, new = (wanted_similarity(kind, amount, 40) for amount in (before, after))
    near(logs.exp().tril() @ old @ logs.exp().tril().mT, new, tolerance=1e-10)


@pytest.mark.parametrize("kind", ["uniform", "exponential"])
@pytest.mark.parametrize(("name", "padded"), [("gpt2", None), ("gpt2", "left"), ("llama", None)])
def test_started_anew_attention_is_the_map(kind: str, name: str, padded: str | None) -> None:
    torch.manual_seed(0)
    model = apply(exact(name), "spa", kind=kind, last=0.6)
    call, real = exact_call(name, padded)
    for place, block in enumerate(record(name, model, call)):
        values = block.values_by_head()
        for row in range(2):
            wanted = by_cholesky(kind, 0.2 * place, 0.2 * (place + 1), int(real[row].sum()))
            # Llama rounds its maps to float32.
            mixed = (wanted @ values[row][:, real[row]]).transpose(0, 1)
            near(block.heads[row, real[row]], mixed, tolerance=1e-6 if name == "llama" else 1e-10)


def test_kept_weights_are_reweighed() -> None:
    call, _ = exact_call("gpt2")
    plain = record("gpt2", exact("gpt2"), call)[0]
    block = record("gpt2", apply(exact("gpt2"), "spa", init="keep", last=0.6), call)[0]
    wanted = by_cholesky("uniform", 0.0, 0.2, TOKENS)
    rows = wanted.sum(-1, keepdim=True)
    weighed = plain.map * wanted
    near(block.heads, (rows * weighed / weighed.sum(-1, keepdim=True) @ plain.values_by_head()).transpose(1, 2))


def test_starts_orthogonal_with_queries_of_zero() -> None:
    for name, queries, values, output in (
        ("llama", "self_attn.q_proj", "self_attn.v_proj", "self_attn.o_proj"),
        ("bert_decoder", "attention.self.query", "attention.self.value", "attention.output.dense"),
    ):
        model: Any = apply(BY_NAME[name].model(), "spa")
        block = model.model.layers[1] if name == "llama" else model.bert.encoder.layer[1]
        assert all(not parameter.any() for parameter in block.get_submodule(queries).parameters())
        for path in (values, output):
            weight = block.get_submodule(path).weight.double()
            gram = weight @ weight.mT if weight.shape[0] <= weight.shape[1] else weight.mT @ weight
            near(gram, torch.eye(len(gram), dtype=torch.double), tolerance=1e-5)


def test_fused_queries_are_zero_and_keys_are_not() -> None:
    for name, path in (("gpt2", "transformer.h.0.attn.c_attn"), ("neox_parallel", "gpt_neox.layers.0.attention")):
        model: Any = apply(BY_NAME[name].model(), "spa")
        made = model.get_submodule(path if name == "gpt2" else f"{path}.query_key_value")(torch.randn(2, 32))
        made = made.unflatten(-1, (3, 4, 8)) if name == "gpt2" else made.unflatten(-1, (4, 3, 8)).transpose(-3, -2)
        assert not made[:, 0].any()
        assert made[:, 1].all()


def test_without_the_way_past_similarities_are_the_wanted_ones() -> None:
    # Tokens that have nothing in common, values and output that only turn them: a layer makes them as alike as it says.
    model = apply(exact("gpt2"), "spa", last=0.6, layers=[0], skip="drop")
    model.set_attn_implementation("sdpa")  # which hides the future where a block is called by itself
    block = blocks_of("gpt2", model)[0]
    for module in (block.attn.c_attn, block.attn.c_proj):
        module.bias.data.zero_()
    found: list[Tensor] = []
    block.ln_2.register_forward_pre_hook(lambda module, args: found.append(args[0]))
    block.ln_1.register_forward_hook(lambda module, args, out: torch.eye(TOKENS, 32, dtype=torch.double)[None])
    block(torch.zeros(1, TOKENS, 32, dtype=torch.double))
    near(found[0][0] @ found[0][0].mT, wanted_similarity("uniform", 0.2, TOKENS), tolerance=1e-10)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("bert", {}, "not causal"),
        ("gpt2", {"kind": "linear"}, "kind"),
        ("gpt2", {"last": 1.0}, "last"),
        ("neox_parallel", {"skip": "drop"}, "at once"),
    ],
)
def test_what_it_cannot_do_is_told(name: str, options: dict[str, object], message: str) -> None:
    model = BY_NAME[name].model()
    with pytest.raises(UnsmoothError, match=message):
        apply(model, "spa", **options)
    assert applied(model) == []


def test_a_kept_map_is_that_of_the_call() -> None:
    def made() -> Any:
        return _bare(apply(exact("gpt2"), "spa", last=0.6, init="keep"))

    model, ids = made(), torch.randint(0, 20, (2, 9))
    with torch.inference_mode():
        model(ids)  # what is made here can be part of no gradient
    for tokens in (9, 5, 9, 9):
        part = ids[:, :tokens]
        near(model(part).logits, made()(part).logits, tolerance=1e-12)
    assert [edit._kept[0][0] for edit in _edits(model)] == [9] * len(_edits(model))
    model(ids).logits.sum().backward()
    sums = [float(one.grad.sum()) for one in model.parameters() if one.grad is not None]
    other = made()
    other(ids).logits.sum().backward()
    assert sums == pytest.approx([float(one.grad.sum()) for one in other.parameters() if one.grad is not None])


def test_a_map_that_lasts_for_one_call_is_not_kept() -> None:
    model, ids = _bare(apply(exact("gpt2"), "spa", last=0.6, init="keep")), torch.randint(0, 20, (2, 9))
    embeddings = model.get_input_embeddings()(ids).detach()
    torch.func.grad(lambda x: model(inputs_embeds=x).logits.sum())(embeddings)
    with torch.inference_mode():
        model(ids)
    assert all(edit._kept is None for edit in _edits(model))
    assert len(_edits(model)) == 3


def _bare(model: Any) -> Any:
    """No cache, and no mask where nothing is hidden but the future."""
    model.config.use_cache = False
    model.set_attn_implementation("sdpa")
    return model


def _edits(model: Any) -> list[Any]:
    return [module for module in model.modules() if type(module).__name__ == "SignalPreserving"]
