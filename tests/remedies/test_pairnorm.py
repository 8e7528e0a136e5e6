from __future__ import annotations

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache

from tests.remedies.hosts import BY_NAME
from tests.remedies.written_out import CASES, CAUSAL, blocks_of, exact, exact_call, may_see, near, record
from unsmooth.remedies import apply
from unsmooth.remedies.call import Call
from unsmooth.remedies.token_mean import token_spread


def by_hand(x: Tensor, seen: Tensor, scale: float, scale_by: str) -> Tensor:
    """Token by token, from the tokens it may see and nothing else."""
    out = x.clone()
    for row in range(x.shape[0]):
        for place in range(x.shape[1]):
            tokens, token = x[row, seen[row, place]], x[row, place]
            if len(tokens) == 0:
                continue
            if len(tokens) == 1:
                out[row, place] = scale * token / (token.square().sum() + 1e-6).sqrt()
                continue
            mean = tokens.mean(0)
            size = {
                "all": (tokens - mean).square().sum(-1).mean(),
                "token": (token - mean).square().sum(),
                "first": token.square().sum(),
            }[scale_by]
            size = (size + 1e-6).sqrt()
            out[row, place] = scale * token / size - mean if scale_by == "first" else scale * (token - mean) / size
    return out


@pytest.mark.parametrize("scale_by", ["all", "token", "first"])
@pytest.mark.parametrize(("name", "padded"), CASES)
def test_is_what_the_tokens_seen_make_of_it(name: str, padded: str | None, scale_by: str) -> None:
    model = apply(exact(name), "pairnorm", scale=2.0, scale_by=scale_by)
    call, real = exact_call(name, padded)
    for block in record(name, model, call):
        near(block.branch, by_hand(block.before, may_see(name, real), 2.0, scale_by), real, tolerance=1e-9)


def test_the_sum_of_squared_distances_is_fixed() -> None:
    edit = blocks_of("bert", apply(exact("bert"), "pairnorm", place="block"))[0].unsmooth.pairnorm
    x = 7.0 + torch.randn(2, 6, 32, dtype=torch.double)
    got = edit.on_block(x, Call(x, False, None, None, None, {}))
    distances = torch.cdist(got, got).square().sum(dim=(1, 2))
    near(distances, torch.full((2,), 2.0 * 6**2 * 32, dtype=torch.double), tolerance=1e-6)
    near(got.mean(1), torch.zeros(2, 32, dtype=torch.double))


def test_spread_of_nearly_equal_tokens_does_not_cancel() -> None:
    # The mean of squares less the square of the mean would be nothing but rounding here.
    exactly = 1000.0 + 1e-2 * torch.randn(1, 40, 8, dtype=torch.double)
    x = exactly.float()
    _, spread = token_spread(x, Call(x, True, None, None, None, {}), "x")
    wanted = torch.stack([(x[0, : n + 1].double()).var(0, correction=0).sum() for n in range(40)])
    # Means near 1000 are rounded to 6e-5 in float32, a hundredth of the distances.
    near(spread[0, 1:, 0].double(), wanted[1:], tolerance=0.05)


def test_decoding_keeps_the_mean_and_the_spread() -> None:
    host = BY_NAME["llama"]
    model, inputs = apply(host.model(), "pairnorm", scale=1.0), host.inputs()
    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        full = model(input_ids=inputs, use_cache=False).logits
        steps = [
            model(input_ids=part, past_key_values=cache, use_cache=True).logits for part in inputs.split([3, 1, 4], 1)
        ]
    near(torch.cat(steps, 1), full, tolerance=1e-4)
    kept = cache.layers[0].remembered
    assert sorted(kept) == [f"pairnorm.attention{one}" for one in (".count", ".spread.count", ".spread.sum", ".sum")]
    assert kept["pairnorm.attention.sum"].shape == (2, 1, 32)
    assert kept["pairnorm.attention.spread.sum"].shape == (2, 1, 1)


@pytest.mark.parametrize("name", ["bert", *CAUSAL])
def test_a_sequence_of_one_token_is_taken_to_length(name: str) -> None:
    edit = blocks_of(name, apply(exact(name), "pairnorm", scale=3.0))[0].unsmooth.pairnorm
    x = torch.full((1, 1, 32), 5.0, dtype=torch.double)
    got = edit.on_attention(x, Call(x, name in CAUSAL, None, None, None, {}))
    near(got.norm(dim=-1), torch.tensor([[3.0]]).double(), tolerance=1e-6)


def test_default_length_is_that_of_a_layer_norm() -> None:
    assert blocks_of("bert", apply(exact("bert"), "pairnorm"))[0].unsmooth.pairnorm.scale == 32**0.5
