"""A block's derivative without its matrix, against the matrix."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.explaining.seeing import (
    BY_NAME,
    CASE_NAMES,
    CASES,
    ROUNDING,
    block_map,
    dense_block,
    dense_jacobians,
    tokens_of,
    view,
    view_of,
)
from tests.models.entry import Entry, Padding, real_tokens
from unsmooth.explaining.jacobian import BlockMap, Split
from unsmooth.explaining.observe import BatchView
from unsmooth.functional import token_similarity

each_case = pytest.mark.parametrize(("entry", "padding"), CASES, ids=CASE_NAMES)


def random_like(x: Tensor, seed: int) -> Tensor:
    return torch.randn(x.shape, generator=torch.Generator().manual_seed(seed), dtype=x.dtype)


@pytest.mark.parametrize("padding", ["right", "left", "none"])
def test_split_is_the_mean_over_real_tokens(padding: Padding) -> None:
    real, x = real_tokens(padding), random_like(torch.empty(3, 6, 4), 0).double()
    split = Split(real)
    mean, rest = split.mean_part(x), split.rest_part(x)
    for index, tokens in enumerate(tokens_of(x, real)):
        wanted = np.broadcast_to(tokens.mean(axis=0), tokens.shape)
        np.testing.assert_allclose(mean[index, real[index]], wanted, atol=1e-15)
        np.testing.assert_allclose(rest[index, real[index]], tokens - wanted, atol=1e-15)
        assert float(split.energy(x)[index]) == pytest.approx(np.square(tokens).sum(), rel=1e-14)
    assert not mean[~real].any()
    assert not rest[~real].any()
    garbage = torch.where(real.unsqueeze(-1), x, 1e6)
    for part in (split.mean_part, split.rest_part, split.energy, split.similarity):
        assert torch.equal(part(garbage), part(x))


def test_split_by_hand() -> None:
    split = Split(torch.tensor([[True, True, False]]))
    x = torch.tensor([[[1.0, 2.0], [1.0, -2.0], [9.0, 9.0]]])
    assert split.mean_part(x)[0].tolist() == [[1.0, 0.0], [1.0, 0.0], [0.0, 0.0]]
    assert split.rest_part(x)[0].tolist() == [[0.0, 2.0], [0.0, -2.0], [0.0, 0.0]]
    assert split.energy(x).tolist() == [10.0]
    assert split.similarity(x).tolist() == [0.2]


def test_similarity_agrees_with_the_metric() -> None:
    real = real_tokens("left")
    x = random_like(torch.empty(3, 6, 5), 1) + 0.5
    torch.testing.assert_close(Split(real).similarity(x).float(), token_similarity(x, real), rtol=1e-6, atol=0)
    assert Split(real).similarity(torch.zeros(3, 6, 5)).isfinite().all()


@each_case
def test_push_and_pull_are_products_with_the_jacobian(entry: Entry, padding: Padding) -> None:
    """Which also says that every family can be differentiated forwards."""
    seen = view_of(entry, padding)
    block, point = block_map(seen, 2), seen.layers[1].sites["input"]
    tangent, cotangent = random_like(point, 1), random_like(point, 2)
    value, pushed = block.push(point, tangent)
    pulled = block.pull(point, cotangent)
    real, tolerance = seen.real_BN, ROUNDING.get(entry.host, 1e-10)
    dense = dense_jacobians(seen.layers[1], point, real)
    for index, jacobian in enumerate(dense):
        along, across = tangent[index, real[index]].flatten(), cotangent[index, real[index]].flatten()
        scale = np.linalg.norm(jacobian)
        forwards = pushed[index, real[index]].flatten()
        backwards = pulled[index, real[index]].flatten()
        np.testing.assert_allclose(forwards, jacobian @ along.numpy(), atol=tolerance * scale)
        np.testing.assert_allclose(backwards, jacobian.T @ across.numpy(), atol=tolerance * scale)
    many = block.at(point)
    for one, other in ((many.push(tangent), pushed), (many.pull(cotangent), pulled)):
        torch.testing.assert_close(one, other, rtol=0, atol=tolerance * float(other.norm()))
    assert not pushed[~real].any()
    assert not pulled[~real].any()
    output = seen.layers[1].sites["output"]
    torch.testing.assert_close(value[real], output[real], rtol=1e-6, atol=1e-6)


class Tripled(torch.autograd.Function):
    """Differentiable once, and silent about it: what it gives backwards has no history."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return 3.0 * x

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        """Nothing is kept."""

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return 3.0 * grad.detach()

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor) -> Tensor:
        return 3.0 * tangent


def runs_of(seen: BatchView, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Grows by one whenever the second block runs."""
    ran: list[str] = []
    rerun = type(seen.layers[1]).rerun
    monkeypatch.setattr(type(seen.layers[1]), "rerun", lambda view, x: (ran.append(view.path), rerun(view, x))[1])
    return ran


def test_many_products_at_one_point_take_one_run(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = view_of(BY_NAME["bert-tiny"], "right")
    point, ran = seen.layers[1].sites["input"], runs_of(seen, monkeypatch)
    many = block_map(seen, 2).at(point)
    for seed in range(3):
        many.pull(many.push(random_like(point, seed)))
    assert len(ran) == 1


def test_what_can_be_differentiated_once_runs_for_each_product(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = view_of(BY_NAME["bert-tiny"], "right")
    block, point = block_map(seen, 2), seen.layers[1].sites["input"]
    plain, tangent = block.at(point), random_like(point, 1)
    wanted = 3.0 * plain.push(tangent), 3.0 * plain.pull(tangent)
    rerun = type(seen.layers[1]).rerun
    # Half of the output by the operation, so that the other half still has a history.
    halves = lambda out: torch.cat([Tripled.apply(out[..., ::2]), 3.0 * out[..., 1::2]], dim=-1)  # noqa: E731
    order = torch.cat([torch.arange(0, point.shape[-1], 2), torch.arange(1, point.shape[-1], 2)]).argsort()
    monkeypatch.setattr(type(seen.layers[1]), "rerun", lambda view, x: halves(rerun(view, x))[..., order])
    many = block.at(point)
    for one, other in zip((many.push(tangent), many.pull(tangent)), wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-9 * float(other.norm()))


def test_weights_that_are_taken_away_after_a_pass_are_not_counted_on(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = view_of(BY_NAME["bert-tiny"], "right")
    point, ran = seen.layers[1].sites["input"], runs_of(seen, monkeypatch)
    monkeypatch.setattr("unsmooth.explaining.jacobian.is_sharded", lambda block: True)
    many = block_map(seen, 2).at(point)
    many.pull(many.push(random_like(point, 0)))
    assert len(ran) == 2


@each_case
def test_the_split_is_exact_where_all_tokens_are_equal(entry: Entry, padding: Padding) -> None:
    seen = view_of(entry, padding)
    block = block_map(seen, 1)
    collapsed = block.collapsed()
    for index, tokens in enumerate(tokens_of(seen.layers[0].sites["input"], seen.real_BN)):
        wanted = np.broadcast_to(tokens.mean(axis=0), tokens.shape)
        np.testing.assert_allclose(collapsed[index, seen.real_BN[index]], wanted, atol=1e-12)
    # Products with J are those of the matrix, as the test above says.
    for seed in range(3):
        tangent = block.split.mean_part(random_like(collapsed, seed))
        pushed = block.push(collapsed, tangent)[1]
        size = block.split.energy(pushed).sqrt()
        leaked = block.split.energy(block.split.rest_part(pushed)).sqrt()
        assert (leaked <= ROUNDING.get(entry.host, 1e-10) * size).all()
        assert (size > 1e-3 * block.split.energy(tangent).sqrt()).all()
        # Away from that point there is no such law.
        away = block.push(seen.layers[0].sites["input"], tangent)[1]
        leaked = block.split.energy(block.split.rest_part(away)).sqrt()
        assert (leaked > 1e-3 * block.split.energy(away).sqrt()).all()


@pytest.mark.parametrize("name", ["bert-tiny", "gpt2-tiny", "torch_encoder-pre-tokens-first"])
def test_sequences_do_not_mix(name: str) -> None:
    """What `dense_jacobians` takes for granted."""
    seen = view_of(BY_NAME[name], "right")
    layer, point, real = seen.layers[0], seen.layers[0].sites["input"], seen.real_BN
    whole = torch.autograd.functional.jacobian(layer.rerun, point)
    for one in range(len(point)):
        for other in range(len(point)):
            part = whole[one, :, :, other][real[one]][:, :, real[other]]
            assert (float(part.abs().max()) > 0) == (one == other)
        wanted = dense_jacobians(layer, point, real)[one]
        np.testing.assert_allclose(dense_block(whole[one, :, :, one], real[one]), wanted, atol=1e-12)


def seen_with_garbage(name: str, padding: Padding, garbage: float) -> BatchView:
    entry = BY_NAME[name]
    batch = entry.batch(padding)
    real = real_tokens(padding)
    if "src" in batch:
        tokens = batch["src"] if entry.batch_first else batch["src"].transpose(0, 1)
        tokens = torch.where(real.unsqueeze(-1), tokens, garbage)
        batch["src"] = tokens if entry.batch_first else tokens.transpose(0, 1)
    else:
        batch["input_ids"] = torch.where(real, batch["input_ids"], int(garbage))
    return view(entry.model(), batch, real)


@pytest.mark.parametrize("padding", ["right", "left"])
@pytest.mark.parametrize("name", ["bert-tiny", "gpt2-tiny", "bloom-tiny", "torch_encoder-post-batch-first"])
def test_padding_never_leaks_in(name: str, padding: Padding) -> None:
    first, second = (seen_with_garbage(name, padding, garbage) for garbage in (3.0, 33.0))
    real = first.real_BN
    assert not torch.equal(first.layers[0].sites["input"][~real], second.layers[0].sites["input"][~real])
    for one, other in zip(first.layers, second.layers, strict=True):
        first_map, second_map = BlockMap(one, Split(real)), BlockMap(other, Split(real))
        tangent = random_like(one.sites["input"], 5)
        noise = torch.where(real.unsqueeze(-1), 0.0, 1e3)
        ours = first_map.push(one.sites["input"], tangent)[1]
        theirs = second_map.push(other.sites["input"] + noise, tangent + noise)[1]
        torch.testing.assert_close(theirs, ours, rtol=1e-4, atol=1e-4)
        ours = first_map.pull(one.sites["input"], tangent)
        theirs = second_map.pull(other.sites["input"] + noise, tangent + noise)
        torch.testing.assert_close(theirs, ours, rtol=1e-4, atol=1e-4)
