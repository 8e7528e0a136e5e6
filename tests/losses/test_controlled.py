"""A weight whose singular values are prescribed."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from unsmooth.errors import UnsmoothError
from unsmooth.losses import control_spectrum, spectrum


def layer(inputs: int = 5, outputs: int = 7) -> nn.Linear:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Linear(inputs, outputs).double()


@pytest.mark.parametrize("shape", [(5, 7), (7, 5), (4, 4)])
def test_singular_values_stay_prescribed_while_it_learns(shape: tuple[int, int]) -> None:
    module, x = control_spectrum(layer(*shape), rate=0.3, scale=2.0), torch.ones(3, shape[0], dtype=torch.float64)
    wanted = 2.0 * torch.exp(-0.3 * torch.arange(min(shape), dtype=torch.float64))
    optimiser = torch.optim.Adam(module.parameters(), lr=0.1)
    first = module(x).detach()
    for _ in range(5):
        optimiser.zero_grad()
        module(x).square().sum().backward()
        optimiser.step()
        torch.testing.assert_close(torch.linalg.svdvals(module.weight), wanted)
    assert module(x).square().sum() < first.square().sum()
    assert spectrum(module.weight, rate=0.3).item() == pytest.approx(0.0, abs=1e-20)


def test_directions_and_size_are_those_it_had() -> None:
    plain, module = layer(), control_spectrum(layer(), decay="polynomial", rate=0.5)
    left, _, right = torch.linalg.svd(plain.weight.detach(), full_matrices=False)
    target = torch.arange(1, 6, dtype=torch.float64) ** -0.5
    target = target * plain.weight.detach().norm() / target.norm()
    torch.testing.assert_close(module.weight.detach(), left @ torch.diag(target) @ right)
    before = module.weight.detach().clone()
    parametrize.remove_parametrizations(module, "weight")
    assert type(module.weight) is nn.Parameter
    assert torch.equal(module.weight, before)


def test_gradients() -> None:
    module = control_spectrum(layer(3, 4), rate=0.2)
    made = module.parametrizations.weight[0]  # type: ignore[union-attr, index]
    factors = tuple(one.detach().clone().requires_grad_() for one in module.parametrizations.weight.parameters())  # type: ignore[union-attr]

    def weight(left: Tensor, right: Tensor) -> Tensor:
        return made(left, right)  # type: ignore[operator, no-any-return]

    assert torch.autograd.gradcheck(weight, factors)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: control_spectrum(nn.LayerNorm(3)), "a matrix 'weight'"),
        (lambda: control_spectrum(layer(), "gain"), "but got none"),
        (lambda: control_spectrum(layer(), decay="linear"), "decay as one of"),
        (lambda: control_spectrum(layer(), scale=0.0), "scale above 0.0"),
        (lambda: control_spectrum(control_spectrum(layer())), "a matrix 'weight' among the module's own parameters"),
    ],
)
def test_one_line(call: object, words: str) -> None:
    with pytest.raises(UnsmoothError, match=words):
        call()  # type: ignore[operator]


def test_a_weight_in_bfloat16() -> None:
    """QR knows no bfloat16: it is done in float32, and the weight stays what it is kept in."""
    module = control_spectrum(layer().bfloat16(), rate=0.3, scale=2.0)
    assert module.weight.dtype == torch.bfloat16
    wanted = 2.0 * torch.exp(-0.3 * torch.arange(5.0))
    torch.testing.assert_close(torch.linalg.svdvals(module.weight.detach().float()), wanted, rtol=0.02, atol=0.02)
    module(torch.ones(2, 5, dtype=torch.bfloat16)).sum().backward()
    assert all(parameter.grad is not None for parameter in module.parameters())


def test_autocast_does_not_touch_what_is_prescribed() -> None:
    module = control_spectrum(layer(5, 7).float(), rate=1.0, scale=1.0)
    wanted = torch.exp(-torch.arange(5, dtype=torch.float64))
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(torch.linalg.svdvals(module.weight.double()), wanted, rtol=1e-4, atol=0)


def test_a_stay_in_half_precision_does_not_round_what_is_prescribed() -> None:
    module = control_spectrum(layer(5, 7).float(), rate=0.3, scale=1.0)
    wanted = torch.exp(-0.3 * torch.arange(5, dtype=torch.float64))
    module.to(torch.bfloat16).float()
    torch.testing.assert_close(torch.linalg.svdvals(module.weight.double()), wanted, rtol=1e-5, atol=0)


def test_a_weight_that_is_no_number_is_told() -> None:
    broken = layer()
    with torch.no_grad():
        broken.weight[0, 0] = torch.nan
    with pytest.raises(UnsmoothError, match="finite numbers in 'weight' but got NaN or Inf"):
        control_spectrum(broken)
