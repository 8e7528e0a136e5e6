"""The weights of two maps that are subtracted: plain operations and kernels against the formula."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.remedies.test_mixed_heads import ON, needs_kernels
from unsmooth.remedies.subtracting import _Weights, share_of_second, weights_of_both


def written_out(vectors: Tensor, start: float) -> Tensor:
    q1, k1, q2, k2 = vectors
    return torch.exp(q1 @ k1) - torch.exp(q2 @ k2) + start


def test_plain_operations_give_what_the_formula_gives() -> None:
    vectors = (0.3 * torch.randn(4, 12, dtype=torch.double)).requires_grad_()
    wanted = written_out(vectors, 0.4)
    torch.testing.assert_close(share_of_second(vectors, 0.4), wanted)
    found = weights_of_both(vectors, 0.4)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.flatten(), torch.stack([torch.ones(()), -wanted.float()]))
    assert torch.autograd.gradcheck(lambda one: share_of_second(one, 0.4), [vectors])


@needs_kernels
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("width", [1, 12, 32, 50])
def test_the_kernels_give_what_the_formula_gives(width: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    vectors = (0.3 * torch.randn(4, width)).to(dtype)
    exact = vectors.double().requires_grad_()
    wanted = written_out(exact, 0.4)
    (gradient,) = torch.autograd.grad(-0.7 * wanted, exact)
    moved = vectors.to(ON).requires_grad_()
    found = _Weights.apply(moved, 0.4)
    assert (found.shape, found.dtype, found[0, 0, 0].item()) == ((1, 1, 2), torch.float32, 1.0)
    assert found[0, 0, 1].item() == pytest.approx(-wanted.item(), rel=1e-5)
    # The gradient of the 1 goes nowhere.
    (grad,) = torch.autograd.grad(found, moved, torch.tensor([[[5.0, 0.7]]]).to(ON))
    assert grad.dtype == dtype
    tolerance = 1e-5 if dtype == torch.float32 else 2e-3
    torch.testing.assert_close(grad.cpu().double(), gradient, atol=tolerance, rtol=tolerance)
