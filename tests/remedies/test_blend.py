from __future__ import annotations

import pytest
import torch
from torch.autograd import gradcheck

from unsmooth.remedies.blend import blend, blend_whole


@pytest.mark.parametrize("shape", [(2, 5, 3), (2, 5, 4, 3)])
def test_against_the_written_out_sum(shape):
    torch.manual_seed(0)
    x, of = torch.randn(shape, dtype=torch.double), torch.randn(shape, dtype=torch.double)
    gain, shift = torch.randn(shape[2:], dtype=torch.double), torch.randn(shape[2:], dtype=torch.double)
    mean = of.numpy().mean(axis=1, keepdims=True)
    wanted = x.numpy() * (1 + gain.numpy()) + shift.numpy() * mean
    torch.testing.assert_close(blend_whole(x, of, gain, shift), torch.from_numpy(wanted))
    torch.testing.assert_close(blend(x, torch.from_numpy(mean), gain, shift), torch.from_numpy(wanted))
    torch.testing.assert_close(blend_whole(x, of, 0.5, -2.0), torch.from_numpy(1.5 * x.numpy() - 2 * mean))


def test_gradients_reach_everything():
    inputs = [torch.randn(2, 5, 3, dtype=torch.double, requires_grad=True) for _ in range(2)]
    inputs += [torch.randn(3, dtype=torch.double, requires_grad=True) for _ in range(2)]
    assert gradcheck(blend_whole, inputs, check_forward_ad=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_zeros_change_no_bit(dtype):
    x = torch.randn(2, 5, 3).to(dtype)
    assert torch.equal(blend_whole(x, x, torch.zeros(3), torch.zeros(3)), x)
    assert torch.equal(blend_whole(x, x, 0.0, -0.0), x)


def test_a_small_gain_is_not_lost_in_bfloat16():
    x = torch.randn(2, 500, 64).bfloat16()
    grown = blend_whole(x, x, torch.full((64,), 0.01), torch.zeros(64)).double().norm() / x.double().norm()
    assert grown == pytest.approx(1.01, abs=1e-3)  # 1.01 itself is 1.0078 in bfloat16


def test_the_mean_is_summed_in_float32():
    x = (torch.randn(1, 4000, 2) + 100.0).bfloat16()
    left = blend_whole(x, x, 0.0, -1.0).double().mean(dim=1)
    assert left.abs().max() < 0.01
