"""PairNorm of whole sequences by kernels (a GPU's or the interpreter's), against the formula."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import gradcheck

import unsmooth
from tests.remedies.test_mixed_heads import ON, needs_kernels, on_a_gpu
from unsmooth.remedies import spreading
from unsmooth.remedies.call import Call
from unsmooth.remedies.catalogue import pairnorm
from unsmooth.remedies.spreading import EPS, _derivative, _Spread, has_kernels


def written_out(x: Tensor, scale: float) -> Tensor:
    away = x - x.mean(dim=1, keepdim=True)
    return scale * away / (away.norm(dim=2, keepdim=True).square().mean(dim=1, keepdim=True) + EPS).sqrt()


class Plain(torch.autograd.Function):
    """The formula, with the derivative that is to be tested both ways."""

    @staticmethod
    def forward(x):
        return written_out(x, 3.0)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx, grad):
        return _derivative(*ctx.saved_tensors, grad, 3.0)

    @staticmethod
    def jvp(ctx, along):
        return _derivative(*ctx.saved_tensors, along, 3.0)


def test_one_symmetric_map_is_the_derivative_both_ways() -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 5, 3, dtype=torch.double, requires_grad=True)
    assert gradcheck(Plain.apply, x, check_forward_ad=True)


@needs_kernels
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", [(3, 65, 192), (2, 2, 5), (2, 300, 70)])
def test_the_kernels_give_what_the_formula_gives(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    batch, tokens, dim = shape
    # Tokens first, as torch's attention layer has them, and a mean that is larger than what is beside it.
    drawn = (torch.randn(tokens, batch, dim) + 2.0).to(dtype).transpose(0, 1)
    along = torch.randn(shape).to(dtype)
    x = drawn.double().requires_grad_()
    wanted = written_out(x, 3.0)
    (gradient,) = torch.autograd.grad((wanted * along).sum(), x)
    there = drawn.to(ON).requires_grad_()
    found = _Spread.apply(there, 3.0)
    assert found.dtype == dtype
    (found_gradient,) = torch.autograd.grad((found * along.to(ON)).sum(), there)
    tolerance = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 4e-3}[dtype]
    for one, other in ((found, wanted), (found_gradient, gradient)):
        assert (one.detach().cpu().double() - other.detach()).norm() <= tolerance * other.detach().norm()


@needs_kernels
def test_the_kernels_have_forward_derivatives_and_second_ones() -> None:
    torch.manual_seed(0)
    x, along = (torch.randn(2, 5, 8).to(ON) for _ in range(2))
    _, found = torch.func.jvp(lambda x: _Spread.apply(x, 3.0), (x,), (along,))
    _, wanted = torch.func.jvp(lambda x: written_out(x, 3.0), (x,), (along,))
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)

    def second(function) -> Tensor:
        start = x.clone().requires_grad_()
        (first,) = torch.autograd.grad(function(start, 3.0).pow(3).sum(), start, create_graph=True)
        return torch.autograd.grad(first.square().sum(), start)[0]

    torch.testing.assert_close(second(_Spread.apply), second(written_out), atol=1e-2, rtol=1e-3)


def test_what_the_kernels_are_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not has_kernels(torch.zeros(2, 5, 8)), "on the CPU"
    on_a_gpu(monkeypatch)
    monkeypatch.setattr(spreading, "HAS_TRITON", True)
    assert has_kernels(torch.zeros(2, 5, 8))
    assert has_kernels(torch.zeros(2, 5, 8).bfloat16())
    assert not has_kernels(torch.zeros(2, 5, 8).double())
    assert not has_kernels(torch.zeros(2, 1, 8)), "a token alone keeps its direction"
    assert not has_kernels(torch.zeros(1, 2**16, 8)), "one program would have it all"
    monkeypatch.setattr(spreading, "HAS_TRITON", False)
    assert not has_kernels(torch.zeros(2, 5, 8))


@pytest.mark.parametrize(
    ("causal", "padded", "options", "used"),
    [
        (False, False, {}, True),
        (False, False, {"place": "block"}, True),
        (True, False, {}, False),
        (False, True, {}, False),
        (False, False, {"scale_by": "token"}, False),
        (False, False, {"scale_by": "first"}, False),
    ],
)
def test_only_whole_sequences_of_one_size_go_there(
    monkeypatch: pytest.MonkeyPatch, causal: bool, padded: bool, options: dict[str, str], used: bool
) -> None:
    seen: list[float] = []
    monkeypatch.setattr(pairnorm, "has_kernels", lambda x: True)
    monkeypatch.setattr(pairnorm, "spread_tokens", lambda x, scale: seen.append(scale) or x)
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 8, batch_first=True), 1, enable_nested_tensor=False)
    edit = unsmooth.apply(model, "pairnorm", scale=5.0, **options).layers[0].unsmooth.pairnorm
    x = torch.randn(2, 5, 8)
    call = Call(x, causal, torch.ones(2, 5, dtype=torch.bool) if padded else None, None, None, {})
    getattr(edit, edit.places()[0])(x, call)
    assert seen == ([5.0] if used else [])
