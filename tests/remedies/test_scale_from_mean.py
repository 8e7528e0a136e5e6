from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from unsmooth.remedies.scale_from_mean import reweight, reweight_whole, scale_from_mean, scale_from_values

Case = tuple[Callable[..., Tensor], tuple[Tensor, ...]]


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.double, requires_grad=True)


def of_values(key_value: int) -> Case:
    torch.manual_seed(0)
    return scale_from_values, (random(2, 5, 4, 3), random(2, 5, key_value, 3), random(4))


def of_itself(times: int) -> Case:
    torch.manual_seed(0)
    inputs = (random(2, 5, 3), random(3), random(3))
    return lambda x, dc, hc: reweight_whole(x, dc, hc, times), inputs


CASES = {"heads": of_values(4), "grouped heads": of_values(2), "once": of_itself(1), "twice": of_itself(2)}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_gradients_are_those_of_the_function(case: Case) -> None:
    assert gradcheck(*case, check_forward_ad=True, check_batched_grad=True)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_gradients_of_gradients(case: Case) -> None:
    assert gradgradcheck(*case)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_derivatives_along_many_directions_at_once(case: Case) -> None:
    function, inputs = case
    x, *others = (one.detach() for one in inputs)
    along = torch.randn(3, *x.shape, dtype=x.dtype)

    def derivative(tangent: Tensor) -> Tensor:
        return torch.func.jvp(lambda x: function(x, *others), (x,), (tangent,))[1]

    # Linear in its first argument up to a constant, so a step of any size shows the derivative.
    moved = torch.stack([function(x + one, *others) - function(x, *others) for one in along])
    torch.testing.assert_close(torch.func.vmap(derivative)(along), moved)


def test_heads_against_the_written_out_sum() -> None:
    function, (heads, values, omega) = of_values(2)
    mean = values.repeat_interleave(2, dim=2).mean(dim=1, keepdim=True)
    wanted = (1 + omega[:, None]) * heads - omega[:, None] * mean
    torch.testing.assert_close(function(heads, values, omega), wanted)
    torch.testing.assert_close(scale_from_mean(heads, values.mean(dim=1, keepdim=True), omega), wanted)


@pytest.mark.parametrize("times", [1, 2])
def test_tokens_against_the_written_out_sum(times: int) -> None:
    function, (x, dc, hc) = of_itself(times)
    mean = x.mean(dim=1, keepdim=True)
    wanted = (1 + times * dc) * mean + (1 + times * hc) * (x - mean)
    torch.testing.assert_close(function(x, dc, hc), wanted)
    torch.testing.assert_close(reweight(x, mean, dc, hc, times), wanted)


def test_gradients_of_parameters_are_summed_in_their_own_precision() -> None:
    # 4,096 terms of 1/256 are 16; summed one by one in bfloat16 they would stop at 2.
    x = torch.ones(64, 64, 1, dtype=torch.bfloat16)
    x[:, ::2] = -1
    gain = torch.zeros(1, requires_grad=True)
    (reweight_whole(x, torch.zeros(1), gain) * x / 256).sum().backward()
    assert gain.grad is not None
    assert gain.grad.dtype == torch.float32
    assert gain.grad.item() == 16.0
