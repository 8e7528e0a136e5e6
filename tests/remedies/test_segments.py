"""Remedies where attention sees a memory of earlier segments (Transformer-XL), whose tokens are in no call."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - as everywhere

from tests.networks.tiny import shaken
from unsmooth import networks
from unsmooth.errors import UnsmoothError
from unsmooth.networks import Decoder
from unsmooth.networks.relative import Memory
from unsmooth.remedies import applied, apply, undo

CONFIG = networks.DecoderConfig(vocabulary=9, depth=2, dim=8, heads=2, hidden=8, length=4, memory=6)


@pytest.mark.parametrize("name", ["gfsa", "spa"])
def test_what_needs_more_of_earlier_tokens_than_keys_and_values_is_refused(name: str) -> None:
    model = Decoder(CONFIG)
    with pytest.raises(UnsmoothError, match=f"{name} cannot be applied.*sees 6 tokens of earlier segments.*memory=0"):
        apply(model, name)
    assert applied(model) == []
    apply(Decoder(networks.DecoderConfig(vocabulary=9, depth=2, dim=8, heads=2, hidden=8)), name)


def _model(name: str, **options: object) -> Decoder:
    plain = shaken(Decoder(CONFIG), 0.5).double().eval()
    return plain if name == "plain" else apply(plain, name, **options)


def _texts(tokens: int) -> Tensor:
    return torch.randint(9, (2, tokens), generator=torch.Generator().manual_seed(0))


def _heads_in_second_segment(model: Decoder) -> tuple[list[Tensor], Memory]:
    """What each head of the first block gives, as its output projection reads it, and the memory it saw."""
    seen: list[Tensor] = []
    _, memory = model(_texts(8)[:, :4])
    memory = Memory(memory.states, torch.tensor([4, 2]))  # of six places, four and two are tokens
    out = model.stack.blocks[0].attention.out
    handle = out.register_forward_pre_hook(lambda _, args: seen.append(args[0].unflatten(-1, (2, 4))))
    model(_texts(8)[:, 4:], memory)
    handle.remove()
    return seen, memory


@pytest.mark.parametrize(
    ("name", "options", "weights"),
    [
        ("centred", {}, (0, 1, 1)),
        ("shaped", {"learn": "no"}, (1, 1, 1)),
        ("attnscale", {"omega": 0.5}, (0, 1.5, 0.5)),
    ],
)
def test_the_mean_is_over_memory_and_prefix(
    name: str, options: dict[str, object], weights: tuple[float, float, float]
) -> None:
    (plain,), memory = _heads_in_second_segment(_model("plain"))
    (got,), _ = _heads_in_second_segment(_model(name, **options))
    model = _model("plain")
    block = model.stack.blocks[0]
    read = block.read(model.embedded(_texts(8)[:, 4:]))
    weight, bias = block.attention.qkv.weight[16:], block.attention.qkv.bias[16:]
    identity, attention, less = weights
    for row, known in enumerate((4, 2)):
        tokens = torch.cat([memory.states[0, row, -known:], read[row]])
        values = F.linear(tokens, weight, bias).unflatten(-1, (2, 4))
        for place in range(4):
            mean = values[: known + place + 1].mean(0)
            wanted = identity * values[known + place] + attention * plain[row, place] - less * mean
            torch.testing.assert_close(got[row, place], wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["centred", "shaped"])
def test_nothing_of_the_future_is_in_the_mean(name: str) -> None:
    model, ids = _model(name), _texts(12)
    other = ids.clone()
    other[:, 6:] = (other[:, 6:] + 1) % 9
    given = []
    for texts in (ids, other):
        logits, memory = model(texts[:, :4])
        given.append(torch.cat([logits, model(texts[:, 4:8], memory)[0]], dim=1))
    assert torch.equal(given[0][:, :6], given[1][:, :6])
    assert not torch.equal(given[0][:, 6:], given[1][:, 6:])


@pytest.mark.parametrize("name", ["centred", "shaped", "attnscale"])
def test_segments_give_what_one_long_segment_gives(name: str) -> None:
    model, ids = _model(name), _texts(8)
    whole, _ = model(ids)
    first, memory = model(ids[:, :4])
    second, _ = model(ids[:, 4:], memory)
    torch.testing.assert_close(torch.cat([first, second], dim=1), whole, rtol=0, atol=1e-10)


def test_copies_look_at_their_own_memory_and_undoing_leaves_nothing() -> None:
    model = _model("centred")
    twin = copy.deepcopy(model)
    (got,), _ = _heads_in_second_segment(model)
    (again,), _ = _heads_in_second_segment(twin)
    assert torch.equal(got, again)
    undo(model)
    assert not model.stack.blocks[0].attention._forward_pre_hooks
    (plain,), _ = _heads_in_second_segment(_model("plain"))
    (undone,), _ = _heads_in_second_segment(model)
    assert torch.equal(plain, undone)
