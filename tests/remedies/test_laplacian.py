from __future__ import annotations

from typing import Any

import pytest
import torch

import unsmooth
from tests.remedies.hosts import BY_NAME
from tests.remedies.written_out import CASES, HEADS, exact, exact_call, near, record
from unsmooth.errors import UnsmoothError
from unsmooth.models.value_projection import value_projection
from unsmooth.remedies import apply

# What `heads` means among four.
CHOICES: list[tuple[Any, list[int]]] = [
    (None, [0, 1, 2, 3]),
    (0.5, [0, 1]),
    (-0.25, [3]),
    ([1, -1], [1, 3]),
    (2, [2]),
    (1.0, [0, 1, 2, 3]),
]


@pytest.mark.parametrize(("name", "padded"), CASES)
def test_chosen_heads_use_the_laplacian(name: str, padded: str | None) -> None:
    model = apply(exact(name), "laplacian", heads=[0, 3])
    call, real = exact_call(name, padded)
    for block in record(name, model, call):
        maps = block.map.clone()
        maps[:, [0, 3]] = torch.eye(maps.shape[-1], dtype=maps.dtype) - maps[:, [0, 3]]
        near(block.heads, (maps @ block.values_by_head()).transpose(1, 2), real)


@pytest.mark.parametrize(("heads", "wanted"), CHOICES)
def test_which_heads(heads: Any, wanted: list[int]) -> None:
    model = apply(exact("bert"), "laplacian", heads=heads)
    for block in record("bert", model, exact_call("bert")[0]):
        plain = (block.map @ block.values_by_head()).transpose(1, 2)
        assert [h for h in range(HEADS) if (block.heads[:, :, h] - plain[:, :, h]).abs().max() > 1e-6] == wanted


def test_equal_tokens_get_nothing_from_a_laplacian_head() -> None:
    """I − A is zero on what all tokens share: a branch of such heads gives biases alone."""
    model = apply(BY_NAME["torch_post"].model().double(), "laplacian", heads=1.0)
    given = []
    model.layers[0].self_attn.out_proj.bias.data.zero_()
    model.layers[0].dropout1.register_forward_hook(lambda module, args, out: given.append(out))
    token = torch.randn(2, 1, 32, dtype=torch.float64)
    model(token.expand(-1, 6, -1))
    assert given[0].abs().max() < 1e-12
    model(torch.randn(2, 6, 32, dtype=torch.float64))
    assert given[1].abs().max() > 0.1


def test_gradients_flow_to_values_twice() -> None:
    model = apply(exact("llama"), "laplacian", heads=1.0)
    call, _ = exact_call("llama")
    model(**call).logits.square().mean().backward()
    plain = exact("llama")
    plain(**call).logits.square().mean().backward()
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        assert one.grad is not None
        assert one.grad.isfinite().all()
        assert not torch.equal(one.grad, other.grad)


def test_no_weight_shows_it() -> None:
    model = apply(BY_NAME["bert"].model(), "laplacian")
    assert value_projection(model, 0).unseen == ("laplacian",)
    assert not [key for key, _ in model.named_parameters() if "unsmooth" in key]
    with pytest.raises(UnsmoothError, match="depends on the tokens"):
        unsmooth.fold(model)
