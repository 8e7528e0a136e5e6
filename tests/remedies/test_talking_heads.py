from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.remedies.hosts import BY_NAME
from tests.remedies.written_out import CASES, PARTS, blocks_of, exact, exact_call, near, record, set_all
from unsmooth.errors import UnsmoothError
from unsmooth.remedies import applied, apply


def first_heads(name: str, model: Any, call: dict[str, Any]) -> Tensor:
    """What the heads of the first block give, (batch, tokens, heads, head dim)."""
    found: list[Tensor] = []
    module = blocks_of(name, model)[0].get_submodule(PARTS[name].heads)
    module.register_forward_pre_hook(lambda module, args: found.append(args[0]))
    with torch.no_grad():
        model(**call)
    return found[0].unflatten(-1, (4, 8))


@pytest.mark.parametrize(("name", "padded"), CASES)
def test_logits_and_maps_are_mixed_over_heads(name: str, padded: str | None) -> None:
    call, real = exact_call(name, padded)
    plain = record(name, exact(name), call)[0]
    model = apply(exact(name), "talking_heads")
    given = set_all(name, model, "talking_heads", logits=0.7, maps=0.7, bias=0.3)[0]
    # What a row of logits has more than the logarithms of its map is one number, which no softmax sees.
    seen = plain.map > 0
    logits = torch.einsum("hg,bgnm->bhnm", given["logits"], plain.map.log().masked_fill(~seen, 0.0))
    maps = logits.masked_fill(~seen, -torch.inf).softmax(-1)
    maps = torch.einsum("hg,bgnm->bhnm", given["maps"], maps) + given["bias"].view(4, 1, 1)
    wanted = (maps * seen) @ plain.values_by_head()
    # The maps of some are rounded to float32.
    near(
        first_heads(name, model, call),
        wanted.transpose(1, 2),
        real,
        tolerance=1e-5 if name in ("llama", "vit") else 1e-10,
    )


@pytest.mark.parametrize("name", ["bert", "llama", "vit"])
def test_the_maps_in_use_are_handed_on(name: str) -> None:
    model = apply(exact(name), "talking_heads")
    set_all(name, model, "talking_heads", logits=0.7, maps=0.7, bias=0.3)
    call, real = exact_call(name)
    for block in record(name, model, call):
        near(block.heads, (block.map @ block.values_by_head()).transpose(1, 2), real, tolerance=1e-5)


def test_no_map_is_handed_on_where_the_host_forms_none() -> None:
    host = BY_NAME["llama"]
    model = apply(host.model(), "talking_heads", layers=[1])
    assert model.config._attn_implementation == "sdpa"
    found: list[Any] = []
    model.model.layers[1].self_attn.register_forward_hook(lambda module, args, out: found.append(out[1]))
    host.output(model, host.call(host.inputs()))
    assert found == [None]


def test_starts_as_the_plain_model() -> None:
    for name in ("bert", "llama", "torch_causal", "own_decoder_relative"):
        host = BY_NAME[name]
        call = host.call(host.inputs())
        with torch.no_grad():
            plain, started = (
                host.output(model, call) for model in (host.model(), apply(host.model(), "talking_heads"))
            )
        near(started, plain, tolerance=1e-5)


def test_dropout_is_the_hosts() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 8, dropout=0.5, batch_first=True)
    model = apply(nn.TransformerEncoder(layer, 1, enable_nested_tensor=False), "talking_heads")
    heads: list[Tensor] = []
    model.layers[0].self_attn.heads.register_forward_hook(lambda module, args, out: heads.append(out))
    x = torch.randn(1, 5, 8)
    for training in (True, True, False, False):
        model.train(training)(x)
    assert not torch.equal(heads[0], heads[1])
    assert torch.equal(heads[2], heads[3])


def test_refusals() -> None:
    lonely = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 1, batch_first=True), 1, enable_nested_tensor=False)
    with pytest.raises(UnsmoothError, match="nobody to talk to"):
        apply(lonely, "talking_heads")
    with pytest.raises(UnsmoothError, match="bias"):
        apply(BY_NAME["bert"].model(), "talking_heads", bias=1)
    model = apply(BY_NAME["bert"].model(), "gfsa")
    with pytest.raises(UnsmoothError, match="gfsa already does the mixing"):
        apply(model, "talking_heads")
    assert [one.name for one in applied(model)] == ["gfsa"]
