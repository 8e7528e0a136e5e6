"""RMSNorm of each head: plain operations against the formula, and the kernels (a GPU's or the interpreter's) too."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

from tests.remedies.test_mixed_heads import ON, needs_kernels
from unsmooth.remedies.head_norm import _HeadNorm, head_norm


def written_out(x: Tensor, gain: Tensor, scale: float) -> Tensor:
    return scale * x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * gain


def test_plain_operations_give_what_the_formula_gives() -> None:
    x = torch.randn(2, 3, 5, 8, dtype=torch.double, requires_grad=True)
    gain = torch.randn(8, dtype=torch.double, requires_grad=True)
    torch.testing.assert_close(head_norm(x, gain, 0.3), written_out(x, gain, 0.3))
    assert gradcheck(lambda x, gain: head_norm(x, gain, 0.3), (x, gain))


def test_half_precision_is_rounded_once() -> None:
    x, gain = torch.randn(2, 3, 50, 64).bfloat16(), 1.0 + 0.001 * torch.randn(64)
    found = head_norm(x, gain, 0.3)
    assert found.dtype == torch.bfloat16
    exact = written_out(x.double(), gain.double(), 0.3)
    assert ((found.double() - exact).abs() <= 1.001 * 2**-8 * exact.abs()).all()


@needs_kernels
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("tokens", "width"), [(1, 16), (7, 24), (33, 64)])
def test_the_kernels_give_what_the_formula_gives(tokens: int, width: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    # Tokens first, as torch's attention layer has them.
    x = torch.randn(tokens, 2, 3, width).to(dtype).double().permute(1, 2, 0, 3).requires_grad_()
    gain = torch.randn(width).double().requires_grad_()
    along = torch.randn(2, 3, tokens, width).to(dtype)
    wanted = written_out(x, gain, 0.3)
    gradients = torch.autograd.grad((wanted * along).sum(), (x, gain))
    there = [x.detach().to(ON, dtype).requires_grad_(), gain.detach().float().to(ON).requires_grad_()]
    found = _HeadNorm.apply(*there, 0.3)
    assert found.stride() == there[0].stride()
    found_gradients = torch.autograd.grad((found * along.to(ON)).sum(), there)
    tolerance = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 1e-2}[dtype]
    for one, other in zip((found, *found_gradients), (wanted, *gradients), strict=True):
        assert (one.detach().cpu().double() - other.detach()).norm() <= tolerance * other.detach().norm()
