"""Weighted sums of tokens: plain operations against the formula, and the kernels (a GPU's or the interpreter's) too."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import gradcheck

import unsmooth
from tests.remedies.test_mixed_heads import ON, needs_kernels
from unsmooth.remedies import weighing
from unsmooth.remedies.weighing import _Weigh, weigh

TERMS = [(False, False), (True, False), (False, True), (True, True)]


def drawn(shape: tuple[int, ...], weights: tuple[int, ...], other: bool, mean: bool) -> list[Tensor | None]:
    """x, z, a, b and c in float64."""
    torch.manual_seed(0)
    shapes = (shape, shape if other else None, weights, weights if other else None, weights if mean else None)
    return [None if one is None else torch.randn(one, dtype=torch.double) for one in shapes]


def written_out(x: Tensor, z: Tensor | None, a: Tensor, b: Tensor | None, c: Tensor | None) -> Tensor:
    out = a * x
    if z is not None:
        out = out + b * z
    return out if c is None else out - c * (x.sum(dim=1, keepdim=True) / x.shape[1])


@pytest.mark.parametrize(("other", "mean"), TERMS)
@pytest.mark.parametrize(("shape", "weights"), [((2, 5, 3), (1,)), ((2, 5, 3), (3,)), ((2, 5, 3, 4), (3, 1))])
def test_plain_operations_give_what_the_formula_gives(
    shape: tuple[int, ...], weights: tuple[int, ...], other: bool, mean: bool
) -> None:
    x, z, a, b, c = drawn(shape, weights, other, mean)
    torch.testing.assert_close(weigh(x, a, z, b, less_mean=c), written_out(x, z, a, b, c))
    given = [one.requires_grad_() for one in (x, z, a, b, c) if one is not None]
    assert gradcheck(lambda *_: weigh(x, a, z, b, less_mean=c), given)


def test_half_precision_is_rounded_once() -> None:
    x, z = (torch.randn(2, 50, 64).bfloat16() for _ in range(2))
    a, b = 1.0 + 0.001 * torch.randn(64), 1e-5 * torch.rand(64)
    found, exact = weigh(x, a, z, b), written_out(x.double(), z.double(), a.double(), b.double(), None)
    assert found.dtype == torch.bfloat16
    assert ((found.double() - exact).abs() <= 1.001 * 2**-8 * exact.abs()).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_one_and_zeros_change_no_bit(dtype: torch.dtype) -> None:
    x, z = (torch.randn(2, 5, 3).to(dtype) for _ in range(2))
    assert torch.equal(weigh(x, torch.ones(1), z, torch.zeros(1), less_mean=torch.zeros(1)), x)


def moved(one: Tensor, dtype: torch.dtype, learned: bool) -> Tensor:
    """Tokens as torch's attention layer has them, by token first; weights in float32."""
    if one.ndim == 2:
        return one.float().to(ON).requires_grad_(learned)
    return one.to(ON, dtype).transpose(0, 1).contiguous().transpose(0, 1).requires_grad_()


def followed(given: list[Tensor | None]) -> list[Tensor]:
    return [one for one in given if one is not None and one.requires_grad]


@needs_kernels
@pytest.mark.parametrize("learned", [True, False])
@pytest.mark.parametrize(("other", "mean"), TERMS)
@pytest.mark.parametrize(
    ("dtype", "shape", "numbers"),
    [
        (torch.float32, (2, 9, 3, 24), 3),
        (torch.bfloat16, (2, 65, 3, 24), 3),
        (torch.float16, (2, 130, 70, 1), 70),
        (torch.float32, (2, 1, 1, 8), 1),
    ],
)
def test_the_kernels_give_what_the_formula_gives(
    dtype: torch.dtype, shape: tuple[int, ...], numbers: int, other: bool, mean: bool, learned: bool
) -> None:
    given = drawn(shape, (numbers, 1), other, mean)
    along = torch.randn(shape).to(dtype)
    there = [None if one is None else moved(one, dtype, learned) for one in given]
    exact = [None if one is None else one.detach().cpu().double().requires_grad_(one.requires_grad) for one in there]
    wanted, found = written_out(*exact), _Weigh.apply(*there)
    assert found.dtype == dtype
    gradients = torch.autograd.grad((wanted * along).sum(), followed(exact))
    found_gradients = torch.autograd.grad((found * along.to(ON)).sum(), followed(there))
    tolerance = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}[dtype]
    for one, other_one in zip((found, *found_gradients), (wanted, *gradients), strict=True):
        away = (one.detach().cpu().double() - other_one.detach()).norm()
        assert away <= tolerance * max(1.0, other_one.detach().norm())


@needs_kernels
@pytest.mark.parametrize(("other", "mean"), TERMS)
def test_the_kernels_have_forward_derivatives_and_second_ones(other: bool, mean: bool) -> None:
    given = [one if one is None else one.to(ON) for one in drawn((2, 5, 3, 4), (3, 1), other, mean)]
    everything = [one.float() for one in given if one is not None]
    along = tuple(torch.randn_like(one) for one in everything)

    def whole(function, *tensors):
        left = iter(tensors)
        return function(*(None if one is None else next(left) for one in given))

    for tangents in (along, (along[0], *(torch.zeros_like(one) for one in along[1:]))):
        _, found = torch.func.jvp(lambda *one: whole(_Weigh.apply, *one), tuple(everything), tangents)
        _, wanted = torch.func.jvp(lambda *one: whole(written_out, *one), tuple(everything), tangents)
        torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)

    def second(function) -> list[Tensor]:
        inputs = [one.clone().requires_grad_() for one in everything]
        (first,) = torch.autograd.grad(whole(function, *inputs).pow(3).sum(), inputs[0], create_graph=True)
        return list(torch.autograd.grad(first.square().sum(), inputs))

    for one, wanted in zip(second(_Weigh.apply), second(written_out), strict=True):
        torch.testing.assert_close(one, wanted, atol=1e-2, rtol=1e-3)


def test_what_the_kernels_are_for(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.zeros(2, 5, 8)
    assert not weighing._has_kernel(x, None), "on the CPU"
    monkeypatch.setattr(weighing, "HAS_TRITON", True)
    monkeypatch.setattr(Tensor, "is_cuda", True)
    assert weighing._has_kernel(x, None)
    assert weighing._has_kernel(x.half(), x.half())
    assert not weighing._has_kernel(x, x.half())
    assert not weighing._has_kernel(x, x[:, :1])
    assert not weighing._has_kernel(x.double(), None)


@needs_kernels
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("shaped", {}),
        ("shaped", {"learn": "layer"}),
        ("value_skipinit", {"beta": 0.5}),
        ("value_skipinit", {"beta": 0.5, "learn": "head"}),
        ("value_residual", {}),
        ("value_residual", {"learn": "head"}),
        ("layerscale", {}),
    ],
)
def test_whole_models_train_alike_by_kernels(
    monkeypatch: pytest.MonkeyPatch, name: str, options: dict[str, Any]
) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 16, dropout=0.0, batch_first=True)
    model = unsmooth.apply(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), name, **options).to(ON)
    x, along = (torch.randn(2, 5, 16).to(ON) for _ in range(2))
    calls: list[int] = []
    apply = _Weigh.apply
    monkeypatch.setattr(_Weigh, "apply", lambda *given: calls.append(1) or apply(*given))

    def trained(by_kernels: bool) -> list[Tensor]:
        monkeypatch.setattr(weighing, "_has_kernel", lambda x, z: by_kernels)
        model.zero_grad()
        out = model(x)
        (out * along).sum().backward()
        return [out.detach(), *(one.grad for one in model.parameters())]

    wanted = trained(False)
    assert not calls
    for one, other in zip(trained(True), wanted, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)
    assert calls
