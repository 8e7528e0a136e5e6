from __future__ import annotations

import pytest
import torch

from tests.remedies.written_out import CASES, HEADS, blocks_of, exact, exact_call, near, record, set_all
from unsmooth.remedies import apply
from unsmooth.remedies.call import Call


@pytest.mark.parametrize("learn", ["layer", "head"])
@pytest.mark.parametrize(("name", "padded"), CASES)
def test_is_the_map_beside_an_identity_times_the_values(name: str, padded: str | None, learn: str) -> None:
    model = apply(exact(name), "value_skipinit", learn=learn)
    chosen = set_all(name, model, "value_skipinit", alpha=0.7, beta=0.9)
    call, real = exact_call(name, padded)
    eye = torch.eye(real.shape[1], dtype=torch.double)
    for block, numbers in zip(record(name, model, call), chosen, strict=True):
        alpha, beta = (numbers[key].expand(HEADS).reshape(1, HEADS, 1, 1) for key in ("alpha", "beta"))
        near(block.heads, ((alpha * eye + beta * block.map) @ block.values_by_head()).transpose(1, 2), real)


def test_starts_with_each_token_by_itself_and_learns_to_attend() -> None:
    model = apply(exact("vit"), "value_skipinit")
    call, _ = exact_call("vit")
    for block in record("vit", model, call):
        near(block.heads, block.values_by_head().transpose(1, 2))
    model(**call).last_hidden_state.square().mean().backward()
    for block in blocks_of("vit", model):
        assert block.unsmooth.value_skipinit.alpha.grad.ne(0).all()
        assert block.unsmooth.value_skipinit.beta.grad.ne(0).all()
        assert not block.attention.q_proj.weight.grad.any(), "queries are first felt once β has moved"


def test_a_small_beta_survives_bfloat16() -> None:
    model = apply(exact("bert").bfloat16(), "value_skipinit", alpha=1.0, beta=0.001)
    edit = blocks_of("bert", model)[0].unsmooth.value_skipinit
    values, heads = torch.full((1, 4, 4, 8), 1.0, dtype=torch.bfloat16), torch.full((1, 4, 4, 8), 1000.0).bfloat16()
    found = edit.on_heads(heads, Call(values[:, :, 0], False, None, None, None, {}, values))
    assert found.dtype == torch.bfloat16
    near(found.float(), torch.full_like(found.float(), 2.0), tolerance=0.01)
