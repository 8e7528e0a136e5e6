"""Layouts that are not what the host says are refused, never guessed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.models.entries import ENTRIES
from unsmooth.errors import UnsmoothError
from unsmooth.models import value_projection

BY_NAME = {entry.name: entry for entry in ENTRIES}


class Adapter(nn.Module):
    """Shows the weight it wraps but computes something else, as LoRA layers do."""

    def __init__(self, inner: nn.Linear) -> None:
        super().__init__()
        self.weight, self.bias, self.change = inner.weight, inner.bias, nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = nn.functional.linear(x, self.weight, self.bias) + self.change(x)
        return out


class AdaptedLinear(nn.Linear):
    """The same as a subclass."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * 2


class DynamicTanh(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.tanh()


class Wrapped(Tensor):
    """A tensor subclass, as quantisation libraries have."""


def _set(path: str, make: Callable[[Any], Any]) -> Callable[[Any], None]:
    """A change that replaces the module or parameter at `path` of the first block."""

    def change(block: Any) -> None:
        owner, _, name = path.rpartition(".")
        module = block.get_submodule(owner)
        new = make(getattr(module, name))
        delattr(module, name)
        setattr(module, name, new)

    return change


def _weight(dtype: torch.dtype) -> Callable[[Any], Any]:
    return lambda weight: nn.Parameter(weight.detach().to(dtype), requires_grad=False)


def _remove(path: str) -> Callable[[Any], None]:
    def change(block: Any) -> None:
        owner, _, name = path.rpartition(".")
        delattr(block.get_submodule(owner), name)

    return change


def _extra_key(block: Any) -> None:
    block.self_attn = nn.MultiheadAttention(16, 2, add_bias_kv=True)


def _other_width(block: Any) -> None:
    block.self_attn = nn.MultiheadAttention(16, 2, kdim=8, vdim=8)


def _residual_after_norm(block: Any) -> None:
    block.apply_residual_connection_post_layernorm = True


VALUE = "attention.self.value"
NO_RUN = "not called in a pass"
REFUSED = [
    ("bert-tiny", _set(VALUE, Adapter), "an nn.Linear at 'attention.self.value' in BertLayer but got Adapter"),
    ("bert-tiny", _set(VALUE, lambda old: AdaptedLinear(16, 16)), "but got AdaptedLinear"),
    ("bert-tiny", _set("attention.output.dense", lambda old: nn.Linear(8, 16)), NO_RUN),
    ("bert-tiny", _set(f"{VALUE}.weight", _weight(torch.int8)), NO_RUN),
    ("bert-tiny", _set(f"{VALUE}.weight", _weight(torch.float8_e4m3fn)), NO_RUN),
    ("bert-tiny", lambda block: block.to("meta"), "a meta tensor"),
    ("bert-tiny", _remove("attention.output.dense"), NO_RUN),
    ("bert-tiny", _set("attention.output.LayerNorm", lambda old: DynamicTanh()), "but got DynamicTanh"),
    ("bert-tiny", _set("attention.output.LayerNorm", lambda old: nn.LayerNorm(8)), NO_RUN),
    ("gpt2-tiny", _set("attn.c_attn.weight", lambda old: nn.Parameter(old.T.contiguous())), NO_RUN),
    ("timm_vit-stand-in", _set("attn.norm", lambda old: DynamicTanh()), "RMSNorm at 'attn.norm' in Block"),
    ("timm_vit-stand-in", _set("ls1", lambda old: nn.Linear(16, 16)), "what 'attn.proj' gives does not go into"),
    ("torch_encoder-post-batch-first", _extra_key, "an extra key"),
    ("torch_encoder-post-batch-first", _other_width, NO_RUN),
    ("bloom-tiny", _residual_after_norm, "a norm on the stream after some of the additions"),
]


@pytest.mark.parametrize(("name", "change", "message"), REFUSED, ids=[f"{r[0]}-{i}" for i, r in enumerate(REFUSED)])
def test_refused(name: str, change: Callable[[Any], None], message: str) -> None:
    model = BY_NAME[name].model()
    value_projection(model, 0)
    block = model.get_submodule(BY_NAME[name].blocks.format(0))
    change(block)
    with pytest.raises(UnsmoothError, match=message):
        value_projection(model, 0)


def test_tensor_subclass_is_refused() -> None:
    model = BY_NAME["llama-llama"].model()
    projection = model.layers[0].self_attn.v_proj
    projection.weight = nn.Parameter(projection.weight.detach().as_subclass(Wrapped))
    with pytest.raises(UnsmoothError, match="quantised"):
        value_projection(model, 0)


@pytest.mark.parametrize("block", [-1, 3])
def test_block_that_is_not_there(block: int) -> None:
    with pytest.raises(UnsmoothError, match=f"a block from 0 to 2 but got {block}"):
        value_projection(BY_NAME["bert-tiny"].model(), block)


def test_pattern_over_unknown_blocks() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    with pytest.raises(UnsmoothError, match="weights that its numbers prove in Linear but got"):
        value_projection(model, 1, blocks="*")


def test_pattern_over_known_blocks() -> None:
    model = BY_NAME["bert-tiny"].model()
    some = value_projection(model, 1, blocks="encoder.layer.[02]")
    assert torch.equal(some.w_v, value_projection(model, 2).w_v)


def test_weights_that_are_not_finite_are_handed_on() -> None:
    model = BY_NAME["bert-tiny"].model()
    model.encoder.layer[0].attention.self.value.weight.data[0, 0] = float("nan")
    assert value_projection(model, 0).w_v.isnan().sum() == 1
