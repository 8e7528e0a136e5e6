"""What every host hands an edit of attention's mixing is its own attention, which may run with other tensors."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - as everywhere
from transformers import GPT2Config, GPT2Model

from tests.models.entry import Entry
from tests.models.timm_entries import STAND_INS
from tests.remedies.hosts import BY_NAME
from tests.remedies.snapshot import Snapshot
from unsmooth.errors import UnsmoothError
from unsmooth.remedies import apply, undo
from unsmooth.remedies.mixing import Mix, TorchMix, TransformersMix
from unsmooth.remedies.opening import open_timm_attention
from unsmooth.remedies.routing import why_not_mixable


class RecordedError(Exception):
    """Thrown to leave a model once its first block has handed over its attention."""


def mix_of(name: str, attention: str | None = None, padded: bool = True) -> Mix:
    """The attention of a host's first block in a padded batch of four real tokens and six."""
    host = BY_NAME[name]
    model: Any = apply(host.model().double(), "gfsa")
    if attention is not None:
        model.set_attn_implementation(attention)
    edit = next(module for path, module in model.named_modules() if path.endswith("unsmooth.gfsa"))
    found: list[Mix] = []

    def record(mix: Mix, call: Any) -> Tensor:
        found.append(mix)
        raise RecordedError

    edit.on_mixing = record
    real = torch.arange(6) < torch.tensor([[4], [6]])
    inputs = host.inputs()[:, :6]
    inputs = inputs.double() if host.kind == "vectors" else inputs
    with pytest.raises(RecordedError), torch.no_grad():
        model(**host.call(inputs, real if padded else None))
    return found[0]


def by_hand(mix: Mix, causal: bool, padded: bool, value: Tensor, bias: Tensor | float = 0.0) -> Tensor:
    """Attention over the real tokens, written out."""
    heads = mix.query.shape[1]
    key = mix.key.repeat_interleave(heads // mix.key.shape[1], dim=1)
    value = value.repeat_interleave(heads // value.shape[1], dim=1)
    logits = mix.query @ key.mT / mix.query.shape[-1] ** 0.5 + bias
    if padded:
        logits[0, :, :, 4:] = -torch.inf
    if causal:
        logits = logits.masked_fill(torch.ones_like(logits).triu(1).bool(), -torch.inf)
    return logits.softmax(-1) @ value


CASES = [
    *(("bert", "sdpa", True), ("bert", "eager", True), ("llama", "sdpa", True), ("llama", "eager", True)),
    *(
        ("llama", "sdpa", False),
        ("torch_post", None, True),
        ("torch_causal", None, False),
        ("own_decoder", None, False),
    ),
]


@pytest.mark.parametrize(("name", "attention", "padded"), CASES)
def test_runs_again_with_other_tensors(name: str, attention: str | None, padded: bool) -> None:
    mix, causal = mix_of(name, attention, padded), BY_NAME[name].causal
    # Llama rounds its maps to float32 where it forms them.
    near: dict[str, Any] = {"rtol": 0.0, "atol": 1e-6 if (name, attention) == ("llama", "eager") else 1e-12}
    torch.manual_seed(0)
    heads, tokens = mix.query.shape[1:3]
    bias = torch.randn(heads, tokens, tokens, dtype=torch.double)
    other = torch.randn(2, heads, tokens, 5, dtype=torch.double)
    with torch.no_grad():
        for got, wanted in (
            (mix(), by_hand(mix, causal, padded, mix.value)),
            (mix(bias=bias), by_hand(mix, causal, padded, mix.value, bias)),
            (mix(value=other), by_hand(mix, causal, padded, other)),
            (
                mix(query=0 * mix.query, bias=bias),
                by_hand(_with(mix, query=0 * mix.query), causal, padded, mix.value, bias),
            ),
        ):
            torch.testing.assert_close(got, wanted, **near)


def _with(mix: Mix, **changed: Tensor) -> Mix:
    other = copy.copy(mix)
    vars(other).update(changed)
    return other


@pytest.mark.parametrize(("name", "attention", "padded"), CASES)
def test_logits_are_those_of_the_map(name: str, attention: str | None, padded: bool) -> None:
    mix = mix_of(name, attention, padded)
    logits, seen = mix.logits()
    logits = logits if seen is None else logits.masked_fill(~seen, -torch.inf)
    mixed = logits.softmax(-1) @ mix.value.repeat_interleave(mix.query.shape[1] // mix.value.shape[1], dim=1)
    torch.testing.assert_close(mixed, by_hand(mix, BY_NAME[name].causal, padded, mix.value), rtol=0.0, atol=1e-12)


def test_narrower_queries_keep_the_scale() -> None:
    query, key, value = torch.randn(3, 1, 2, 4, 8, dtype=torch.double)
    wanted = (query[..., :4] @ key[..., :4].mT / 8**0.5).softmax(-1) @ value
    got = TorchMix(query, key, value)(query=query[..., :4], key=key[..., :4])
    torch.testing.assert_close(got, wanted)
    mix = mix_of("bert", "sdpa", padded=False)
    wanted = (mix.query[..., :4] @ mix.key[..., :4].mT / 8**0.5).softmax(-1) @ mix.value
    torch.testing.assert_close(mix(query=mix.query[..., :4], key=mix.key[..., :4]), wanted)


def test_kernels_without_logits_say_so() -> None:
    query = torch.randn(1, 1, 2, 4)
    mix = TransformersMix(torch.nn.Identity(), None, True, (query, query, query), torch.ones(1, 2), {})
    with pytest.raises(UnsmoothError, match='attn_implementation="sdpa"'):
        mix(bias=torch.zeros(2, 2))
    mix = TransformersMix(torch.nn.Identity(), None, False, (query, query, query), None, {"softcap": 50.0})
    with pytest.raises(UnsmoothError, match="softcap"):
        mix.logits()


def test_a_way_around_the_attention_function_is_refused() -> None:
    sizes = {"n_embd": 8, "n_layer": 1, "n_head": 2, "vocab_size": 9, "n_positions": 9}
    model = GPT2Model(GPT2Config(**sizes, reorder_and_upcast_attn=True))
    with pytest.raises(UnsmoothError, match="GPT2Attention has attention written out"):
        apply(model, "gfsa")


def test_attention_by_itself_is_as_it_was() -> None:
    model: Any = BY_NAME["bert"].model()
    attention, x = model.encoder.layer[0].attention.self, torch.randn(1, 4, 32)
    plain = attention(x)[0]
    apply(model, "gfsa", start=0.5)
    assert torch.equal(attention(x)[0], plain)
    assert attention.config.hidden_size == 32
    undo(model)
    assert attention.config is model.config


@pytest.mark.parametrize("entry", STAND_INS, ids=lambda entry: entry.variant)
def test_timm_attention_runs_as_it_did(entry: Entry) -> None:
    """With a fused kernel and without: to the bit where an edit is neutral, and without a trace when it is gone."""
    model: Any = entry.model()
    attention, x, pixels = model.blocks[0].attn, torch.randn(1, 4, 16), entry.batch("none")["x"]
    before, plain, alone = Snapshot.of(model), model(pixels), attention(x)
    for options in ({}, {"start": 0.5}):
        apply(model, "gfsa", **options)
        assert torch.equal(model(pixels), plain) == (not options)
        assert torch.equal(attention(x), alone)
        maps: list[Tensor] = []
        handle = attention.attn_drop.register_forward_hook(lambda module, args, output, maps=maps: maps.append(output))
        model(pixels)
        handle.remove()
        assert len(maps) == (0 if attention.fused_attn else 2)  # those who take maps there still find them
        before.check(undo(model))
        assert torch.equal(model(pixels), plain)


def test_timm_attention_with_another_forward_is_refused() -> None:
    model: Any = STAND_INS[0].build()
    attention = model.blocks[1].attn
    attention.forward = lambda x: x
    with pytest.raises(UnsmoothError, match=r"block 'blocks\.1': its Attention has attention written out"):
        apply(model, "gfsa")
    del attention.forward
    attention.gate = nn.Identity()
    assert why_not_mixable(attention) is not None
    attention.gate = None
    assert why_not_mixable(attention) is None

    class Other(type(attention)):  # type: ignore[misc]
        def forward(self, x: Tensor) -> Tensor:
            return x

    Other.__module__, Other.__qualname__ = type(attention).__module__, "Attention"
    attention.__class__ = Other
    assert why_not_mixable(attention) is not None


def test_steps_of_timm_under_masks() -> None:
    """Written out, with words or numbers for a mask or the future hidden, attention is torch's."""
    attention = STAND_INS[1].build().get_submodule("blocks.0.attn")
    query, key, value = torch.randn(3, 2, 4, 5, 4, dtype=torch.double)
    seen = torch.ones(5, 5, dtype=torch.bool).tril()
    open_timm_attention(attention, None)
    steps: Any = attention.in_steps
    for mask, causal in ((None, False), (None, True), (seen, False), (torch.randn(2, 1, 5, 5).double(), False)):
        wanted = F.scaled_dot_product_attention(query, key, value, mask, 0.0, causal, scale=0.3)
        torch.testing.assert_close(steps(query, key, value, mask, 0.0, causal, scale=0.3), wanted)
