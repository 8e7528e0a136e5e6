from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.remedies.hosts import BY_NAME
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
def test_is_the_scaled_map_times_the_values(name: str, padded: str | None) -> None:
    model = apply(exact(name), "attnscale")
    chosen = set_all(name, model, "attnscale", omega=0.7)
    call, real = exact_call(name, padded)
    mean = uniform(may_see(name, real))[:, None]
    for block, numbers in zip(record(name, model, call), chosen, strict=True):
        omega = numbers["omega"].reshape(1, HEADS, 1, 1)
        scaled = mean + (1 + omega) * (block.map - mean)
        near(block.heads, (scaled @ block.values_by_head()).transpose(1, 2), real)


def test_fixed_omega_is_no_parameter() -> None:
    model = apply(exact("bert"), "attnscale", omega=0.5, learn="no")
    assert not any("unsmooth" in name for name, _ in model.named_parameters())
    call, real = exact_call("bert")
    mean = uniform(may_see("bert", real))[:, None]
    for block in record("bert", model, call):
        near(block.heads, ((1.5 * block.map - 0.5 * mean) @ block.values_by_head()).transpose(1, 2))


@pytest.mark.parametrize("omega", [0.6, -0.4])
def test_spectrum_keeps_one_and_scales_the_rest(omega: float) -> None:
    # Values that are one-hot tokens make of what a head gives the map itself.
    tokens = 6
    layer = nn.TransformerEncoderLayer(tokens, 1, 8, batch_first=True)
    model = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False).double()
    edit = apply(model, "attnscale", omega=omega).layers[0].unsmooth.attnscale
    torch.manual_seed(0)
    attention = torch.randn(tokens, tokens, dtype=torch.double).softmax(-1)
    values = torch.eye(tokens, dtype=torch.double)[None, :, None]
    call = Call(values[:, :, 0], False, None, None, None, {}, values)
    with torch.no_grad():
        got = edit.on_heads(attention[None, :, None], call)[0, :, 0]
    one, *rest = sorted(torch.linalg.eigvals(attention).tolist(), key=abs, reverse=True)
    wanted = [one, *((1 + omega) * mu for mu in rest)]
    found = torch.linalg.eigvals(got).tolist()
    assert abs(one - 1) < 1e-12
    for eigenvalue in wanted:
        assert min(abs(eigenvalue - other) for other in found) < 1e-10


def test_starts_as_the_plain_model_and_learns() -> None:
    host = BY_NAME["vit"]
    plain, model = host.model(), apply(host.model(), "attnscale")
    call = host.call(host.inputs())
    assert torch.equal(host.output(model, call), host.output(plain, call))
    host.output(model, call).square().mean().backward()
    for block in blocks_of("vit", model):
        assert block.unsmooth.attnscale.omega.grad.ne(0).all()


def test_a_small_omega_survives_bfloat16() -> None:
    # 1 + 0.001 is 1 in bfloat16, where 0.001 is not nothing.
    model = apply(exact("bert").bfloat16(), "attnscale", omega=0.001)
    edit = blocks_of("bert", model)[0].unsmooth.attnscale
    heads, values = torch.full((1, 4, 4, 8), 1.0, dtype=torch.bfloat16), torch.full((1, 4, 4, 8), -1000.0).bfloat16()
    call = Call(values[:, :, 0], False, None, None, None, {}, values)
    moved = edit.on_heads(heads, call).float() - 1.0
    near(moved, torch.full_like(moved, 1.0), tolerance=0.02)
