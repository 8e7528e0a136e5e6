"""Checks of who sees whom: the neutral setting, the future, padding, the key/value cache, packed rows."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache

from tests.remedies.harness import Case, DoesNotApplyError, check, close, outputs, same
from tests.remedies.hosts import TOKENS
from unsmooth.errors import UnsmoothError
from unsmooth.remedies.base import REMEDIES


@check("neutral is bit-equal")
def neutral(case: Case) -> None:
    """At the setting that its class names, a remedy changes no bit."""
    if REMEDIES[case.remedy].neutral is None or not case.setting.neutral:
        raise DoesNotApplyError("it has no neutral setting")
    # Torch may multiply by weights that want gradients in another order than by those that do not, and a computed
    # weight wants none where none are taken.
    plain = outputs(case, case.host.model().requires_grad_(False))
    same(outputs(case, case.remedied(trained=False, neutral=True).requires_grad_(False)), plain, "neutral")


@check("changes the model")
def changes(case: Case) -> None:
    """Away from it, it does change them; or all else here would say nothing."""
    plain = outputs(case, case.host.model())
    apart = (outputs(case, case.remedied()) - plain).abs().amax()
    assert apart > 1e-4, f"outputs moved by {apart:.1e} only"


@check("no token sees the future")
def causality(case: Case) -> None:
    """Another token j leaves every output before j as it was to the bit, and moves those at j and after."""
    if not case.host.causal:
        raise DoesNotApplyError("not a causal host")
    inputs = case.host.inputs()
    other = inputs.clone()
    other[:, 5] = case.host.inputs(seed=1)[:, 5] if case.host.kind == "vectors" else (inputs[:, 5] - 4) % 45 + 5
    for trained in (False, True):
        model = case.remedied(trained)
        before, after = outputs(case, model, inputs), outputs(case, model, other)
        same(after[:, :5], before[:, :5], f"outputs before the token (trained: {trained})")
        moved = (after - before).abs().amax(dim=(0, 2))[5:]
        assert moved.min() > 0, "the token itself, or one after it, does not see the change"


@check("padding changes nothing")
def padding(case: Case) -> None:
    """Real tokens come out as they do from the row alone, padded on either side, however attention is computed."""
    if not case.host.paddings:
        raise DoesNotApplyError("images have no padding")
    model = case.remedied()
    inputs, lengths = case.host.inputs(), torch.tensor([[TOKENS], [5]])
    place = torch.arange(TOKENS)
    if case.unpadded:
        with pytest.raises(UnsmoothError, match="without padding"):
            outputs(case, model, **case.host.call(inputs, place < lengths))
        return
    for attention in ("sdpa", "eager") if case.host.hugging_face else ("torch",):
        if case.host.hugging_face:
            _use_attention(model, attention)
        for side in case.host.paddings:
            real = place < lengths if side == "right" else place >= TOKENS - lengths
            with torch.no_grad():
                padded = case.host.output(model, case.host.call(inputs, real))
            for row in range(2):
                alone = outputs(case, model, inputs[row, real[row]][None])
                close(padded[row, real[row]], alone[0], f"{side} padding, {attention}")


def _use_attention(model: Any, name: str) -> None:
    try:
        model.set_attn_implementation(name)
    except ValueError:  # not every model has every one
        model.set_attn_implementation("eager")


@check("decoding equals the full pass")
def decoding(case: Case) -> None:
    """Token by token and in chunks, also of a padded batch."""
    _needs_cache(case)
    model, inputs = case.remedied(), case.host.inputs()
    full = outputs(case, model, inputs)
    for sizes in ((1,) * TOKENS, (3, 1, 4)):
        close(_in_chunks(model, case.host.call(inputs), sizes), full, f"chunks of {sizes}")
    real = torch.arange(TOKENS) >= TOKENS - torch.tensor([[TOKENS], [5]])
    call = case.host.call(inputs, real)
    with torch.no_grad():
        padded = case.host.output(model, call)
    for sizes in ((4, 1, 1, 1, 1), (4, 4)):
        close(_in_chunks(model, call, sizes)[real], padded[real], f"left-padded, chunks of {sizes}")


@torch.no_grad()
def _in_chunks(
    model: Any, call: dict[str, Tensor], sizes: tuple[int, ...], cache: Any = None, start: int = 0
) -> Tensor:
    cache = DynamicCache(config=model.config) if cache is None else cache
    made = []
    for size in sizes:
        now = {key: value[:, start : start + size] for key, value in call.items()}
        if "attention_mask" in call:
            now["attention_mask"] = call["attention_mask"][:, : start + size]
        made.append(model(**now, past_key_values=cache, use_cache=True).logits)
        start += size
    return torch.cat(made, dim=1)


@check("beams may be reordered")
def beams(case: Case) -> None:
    """What a remedy remembers goes with the keys and values: dropped, repeated, in another order; and generate()."""
    _needs_cache(case)
    model, inputs = case.remedied(), case.host.inputs(rows=3)
    cache = DynamicCache(config=model.config)
    _in_chunks(model, {"input_ids": inputs}, (4,), cache)
    order = torch.tensor([2, 0, 0])
    cache.reorder_cache(order)
    went = torch.cat([inputs[order, :4], inputs[:, 4:]], dim=1)
    rest = _in_chunks(model, {"input_ids": went}, (1, 3), cache, start=4)
    close(rest, outputs(case, model, went)[:, 4:], "after reordering")
    real = torch.arange(TOKENS) >= TOKENS - torch.tensor([[TOKENS], [5], [3]])
    prompt = {key: value for key, value in case.host.call(inputs, real).items() if key != "position_ids"}
    settings = {"max_new_tokens": 5, "min_new_tokens": 5, "do_sample": False, "num_beams": 3}
    with_cache, without = (model.generate(**prompt, **settings, use_cache=used) for used in (True, False))
    assert torch.equal(with_cache, without), "generate() with beams differs with and without the cache"


def _needs_cache(case: Case) -> None:
    if not case.host.cached:
        raise DoesNotApplyError("the host does not decode with a cache")


@check("packed rows keep apart")
def packed(case: Case) -> None:
    """Two sequences in one row, told apart by positions that begin again, come out as each does alone."""
    _needs_cache(case)
    if not case.host.packs:
        raise DoesNotApplyError("the host itself does not tell packed rows apart")
    model, inputs = case.remedied(), case.host.inputs()
    row = inputs.reshape(1, -1)
    places = torch.arange(TOKENS).repeat(2)[None]
    with torch.no_grad():
        together = model(input_ids=row, position_ids=places, use_cache=False).logits
    close(together.reshape(2, TOKENS, -1), outputs(case, model, inputs), "packed")
