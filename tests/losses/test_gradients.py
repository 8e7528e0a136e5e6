"""Gradients: right, finite where tokens are zero or equal, zero at padding; memory; half types; torch.compile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from unsmooth import losses
from unsmooth.functional import _pairs

CASES: dict[str, dict[str, Any]] = {
    "cosine": {},
    "cosine(absolute)": {"absolute": True},
    "laplacian": {},
    "layer_contrast": {},
    "spectrum": {"decay": "polynomial", "rate": 0.5, "scale": 2.0},
    "simcse": {},
    "simcse(mean)": {"pooling": "mean"},
    "duorec": {},
    "dispersion": {},
    "dispersion(cosine)": {"form": "cosine"},
    "dispersion(hinge)": {"form": "hinge", "margin": 5.0},
    "dispersion(covariance)": {"form": "covariance"},
    "dispersion(means)": {"of": "means"},
}
EVERY = pytest.mark.parametrize("case", CASES)


def of(case: str, mask: Tensor | None = None) -> Callable[[Tensor], Tensor]:
    declared = losses.LOSSES[case.split("(")[0]]

    def value(x: Tensor) -> Tensor:
        still = torch.linspace(-1, 1, x.numel()).bfloat16().to(x.dtype).view_as(x)
        beside = {"tokens": {}, "layers": {"first_BND": still}, "views": {"other_BND": still}}[declared.reads]
        return declared.function(x, mask, **beside, **CASES[case])

    return value


def tokens(dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(3, 5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).to(dtype)


@pytest.mark.parametrize("case", [case for case in CASES if case != "laplacian"])  # its weights are held constant
def test_gradients_are_those_of_the_value(case: str) -> None:
    mask = torch.tensor([[1, 1, 1, 1, 0], [1, 1, 1, 1, 1], [0, 1, 1, 1, 1]]).bool()
    assert torch.autograd.gradcheck(of(case, mask), tokens().requires_grad_(), eps=1e-6, atol=1e-7)


def test_laplacian_pushes_with_constant_weights() -> None:
    x = tokens().requires_grad_()
    losses.laplacian(x, temperature=0.3).backward()
    found, x = x.grad, tokens().requires_grad_()
    unit = x / x.norm(dim=-1, keepdim=True)
    cosines = unit @ unit.mT
    weights = (cosines.detach() / 0.3).exp() * (1 - torch.eye(5, dtype=torch.float64))
    (-(weights * (1 - cosines)).sum((1, 2)) / weights.sum((1, 2))).mean().backward()
    torch.testing.assert_close(found, x.grad)


@EVERY
@pytest.mark.parametrize("kind", ["zero", "equal", "some zero", "two left", "one left", "none left"])
def test_gradients_are_finite(case: str, kind: str) -> None:
    x, mask = tokens(torch.float32), None
    if kind in ("zero", "equal"):
        x = torch.zeros_like(x) if kind == "zero" else torch.ones_like(x)
    elif kind == "some zero":
        x[0], x[1, 2] = 0.0, 0.0
    else:
        mask = torch.zeros(3, 5, dtype=torch.bool)
        mask[:, 1 : 1 + {"two": 2, "one": 1, "none": 0}[kind.split()[0]]] = True
        x = x.masked_fill(~mask.unsqueeze(-1), float("nan"))
    x.requires_grad_()
    value = of(case, mask)(x)
    assert value.shape == ()
    assert value.isfinite()
    value.backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()
    if mask is not None:
        assert not x.grad[~mask].any()
    if kind == "none left":
        assert value.item() == 0.0


@EVERY
def test_slices_change_nothing(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for entries in (2**19, 15):
        monkeypatch.setattr(_pairs, "_ENTRIES", entries)
        x = tokens().requires_grad_()
        value = of(case)(x)
        value.backward()
        found.append((value.detach(), x.grad))
    torch.testing.assert_close(found[0], found[1])


@EVERY
def test_half_types_are_summed_in_float32(case: str) -> None:
    x = tokens(torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = of(case)(x)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, of(case)(x.double()).float(), atol=2e-6, rtol=2e-6)


@EVERY
def test_gradients_of_torch_func(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes no checkpoints, by which slices of rows are otherwise made again."""
    monkeypatch.setattr(_pairs, "_ENTRIES", 15)
    x = tokens().requires_grad_()
    (wanted,) = torch.autograd.grad(of(case)(x), x)
    torch.testing.assert_close(torch.func.grad(of(case))(x.detach()), wanted)


def test_a_long_sequence_keeps_no_matrix_of_pairs() -> None:
    x = torch.randn(1, 3000, 2, generator=torch.Generator().manual_seed(0)).requires_grad_()
    kept = 0

    def pack(tensor: Tensor) -> Tensor:
        nonlocal kept
        kept += tensor.numel()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        losses.dispersion(x)
    assert kept < 3000 * 3000 / 10


@pytest.mark.parametrize("shape", [(1, 300, 4), (1, 4, 300)])
def test_covariance_of_many_words_has_no_products_of_all_pairs(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    with FlopCounterMode(display=False) as counted:
        losses.dispersion(x, form="covariance")
    assert counted.get_total_flops() <= 2 * 300 * 4 * 4


def test_compiled_without_a_break() -> None:
    x, mask = tokens(torch.float32), torch.ones(3, 5, dtype=torch.bool)
    for case in ("dispersion", "layer_contrast"):
        function = of(case, mask)
        compiled = torch.compile(function, fullgraph=True, backend="eager")
        torch.testing.assert_close(compiled(x), function(x))


@pytest.mark.parametrize("case", ["cosine", "cosine(absolute)", "laplacian", "dispersion(cosine)", "dispersion(means)"])
def test_gradients_keep_their_digits_where_tokens_are_nearly_alike(case: str) -> None:
    generator = torch.Generator().manual_seed(0)
    x = (torch.randn(16, generator=generator) + 1e-5 * torch.randn(2, 32, 16, generator=generator)).float()
    found, wanted = (torch.autograd.grad(of(case)(one), one)[0] for one in map(Tensor.requires_grad_, (x, x.double())))
    assert (found.double() - wanted).norm() < 1e-5 * wanted.norm()


@pytest.mark.parametrize("loss", [losses.simcse, losses.duorec])
def test_gradients_keep_their_digits_where_means_are_nearly_alike(loss: Callable[..., Tensor]) -> None:
    generator = torch.Generator().manual_seed(0)
    x, other = torch.randn(16, generator=generator) + 1e-5 * torch.randn(2, 3, 32, 16, generator=generator)

    def gradient(one: Tensor, two: Tensor) -> Tensor:
        return torch.autograd.grad(loss(one.requires_grad_(), other_BND=two, pooling="mean"), one)[0].double()

    wanted = gradient(x.double(), other.double())
    assert (gradient(x, other) - wanted).norm() < 1e-5 * wanted.norm()


@pytest.mark.parametrize("size", [1e-18, 1e-20, 1e-21, 1e-30])
@pytest.mark.parametrize("case", ["cosine", "cosine(absolute)", "laplacian"])
def test_gradients_of_very_short_tokens_are_numbers(case: str, size: float) -> None:
    x = tokens(torch.float32)
    x[:, 2] *= size
    (found,) = torch.autograd.grad(of(case)(x.requires_grad_()), x)
    assert found.isfinite().all()


@pytest.mark.parametrize("case", ["cosine", "laplacian", "simcse", "dispersion(cosine)", "dispersion(covariance)"])
def test_tokens_too_long_to_be_measured_are_no_zero_tokens(case: str) -> None:
    assert of(case)(1e200 * tokens()).isnan()


def test_a_loss_is_in_the_precision_of_the_states() -> None:
    x = tokens(torch.float32)
    assert losses.layer_contrast(x, first_BND=x.double()).dtype == torch.float32


@pytest.mark.parametrize("kind", [numpy.float32, numpy.float64, numpy.int64])
def test_options_may_be_numbers_of_numpy(kind: Any) -> None:
    x = tokens()
    assert torch.equal(losses.laplacian(x, temperature=kind(2)), losses.laplacian(x, temperature=2.0))
