"""The flow: its determinant, its likelihood, the way back, what it learns."""

from __future__ import annotations

import math
from pathlib import Path

import numpy
import pytest
import torch

from tests.posthoc.samples import anisotropic
from unsmooth.errors import UnsmoothError
from unsmooth.posthoc import Flow, Whitening, load
from unsmooth.posthoc.coupling import CouplingFlow


def shaken(dimensions: int = 5) -> CouplingFlow:
    """A flow in which no coupling is the identity any more."""
    flow = CouplingFlow(dimensions, layers=3, hidden=8, seed=0).double()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in flow.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, dtype=torch.float64, generator=generator)
    return flow


def test_log_determinant_is_that_of_the_jacobian() -> None:
    flow, x = shaken(), anisotropic(4, 5)
    _, found = flow(x)
    for one, value in zip(x, found, strict=True):
        jacobian = torch.autograd.functional.jacobian(lambda point: flow(point[None])[0][0], one)
        assert value.item() == pytest.approx(torch.linalg.slogdet(jacobian)[1].item(), rel=1e-10)


def test_likelihood_is_the_density_by_change_of_variables() -> None:
    flow, x = shaken(), 0.1 * anisotropic(3, 5)
    for one, value in zip(x, flow.log_likelihood(x), strict=True):
        jacobian = torch.autograd.functional.jacobian(lambda point: flow(point[None])[0][0], one).numpy()
        z = flow(one[None])[0][0].detach().numpy()
        normal = math.prod(math.exp(-(number**2) / 2) / math.sqrt(2 * math.pi) for number in z)
        assert value.item() == pytest.approx(math.log(normal * abs(numpy.linalg.det(jacobian))), rel=1e-9)


def test_a_density_sums_to_one() -> None:
    flow = shaken(2)
    with torch.no_grad():
        centre = flow.undo(torch.zeros(1, 2, dtype=torch.float64))
        far = 12 * (flow.undo(torch.eye(2, dtype=torch.float64)) - centre).norm()
        side = torch.linspace(-1, 1, 801, dtype=torch.float64) * far
        points = torch.cartesian_prod(side, side) + centre
        total = flow.log_likelihood(points).exp().sum() * (side[1] - side[0]) ** 2
    assert total.item() == pytest.approx(1.0, abs=2e-3)


def test_the_way_back_is_exact() -> None:
    x = anisotropic(50, 7)
    flow = Flow(layers=3, hidden=8, steps=30, batch=16).fit(x)
    torch.testing.assert_close(flow.inverse_transform(flow.transform(x)), x, atol=1e-10, rtol=0)


def test_learns_what_no_linear_map_can() -> None:
    generator = torch.Generator().manual_seed(0)
    first = torch.randn(600, generator=generator)
    x = torch.stack([first, first.square() + 0.1 * torch.randn(600, generator=generator)], dim=1)
    train, kept_apart = x[:400], x[400:]
    flow = Flow(layers=4, hidden=16, steps=250, batch=128, learning_rate=1e-2).fit(train)
    gaussian = torch.distributions.MultivariateNormal(train.mean(0), torch.cov(train.T))
    assert flow.score(kept_apart) > gaussian.log_prob(kept_apart).mean().item() + 0.5
    assert flow.score_samples(kept_apart).mean().item() == pytest.approx(flow.score(kept_apart), rel=1e-4)
    assert len(flow.log_likelihoods_) == 250


def test_whitened_samples_are_taken_further_as_the_guide_says() -> None:
    generator = torch.Generator().manual_seed(0)
    sources = torch.randn(4000, 8, dtype=torch.float64, generator=generator)
    sources[:, 4:] = 0.5 * sources[:, 4:] + 0.7 * sources[:, :4].square()
    mixing = torch.randn(8, 8, dtype=torch.float64, generator=generator)
    x = sources @ (mixing * torch.logspace(0, -2, 8, dtype=torch.float64)[:, None])
    train, kept_apart = x[:3000], x[3000:]
    whitening = Whitening().fit(train)
    after = Flow(steps=200).fit(whitening.transform(train)).score(whitening.transform(kept_apart))
    after -= 0.5 * whitening.variances_.log().sum().item()  # densities are per volume
    gaussian = torch.distributions.MultivariateNormal(train.mean(0), torch.cov(train.T))
    assert Flow(steps=200).fit(train).score(kept_apart) < gaussian.log_prob(kept_apart).mean().item() < after - 0.1


@pytest.mark.parametrize(("scale", "shift"), [(1.0, 1e8), (1e100, 0.0), (1e-30, 0.0)])
def test_size_and_place_of_the_samples_do_not_matter(scale: float, shift: float) -> None:
    """Float32 does not hold them; what is trained there has mean 0 and variance 1."""
    x = anisotropic(60, 4)
    plain, moved = Flow(layers=2, steps=10).fit(x), Flow(layers=2, steps=10).fit(scale * x + shift)
    torch.testing.assert_close(moved.transform(scale * x + shift), plain.transform(x), atol=5e-3, rtol=0)
    stretched = 4 * math.log(scale)  # densities are per volume
    assert moved.score(scale * x + shift) == pytest.approx(plain.score(x) - stretched, abs=5e-3)
    assert moved.log_likelihoods_[-1] == pytest.approx(plain.log_likelihoods_[-1] - stretched, abs=5e-3)


def test_likelihoods_of_training_are_those_of_the_samples() -> None:
    x = anisotropic(60, 4)
    flow = Flow(layers=2, steps=2, batch=60, learning_rate=1e-9).fit(x)
    assert flow.log_likelihoods_[0] == pytest.approx(flow.score(x), abs=1e-4)


def test_the_seed_decides_all_and_nobody_elses_numbers_change() -> None:
    x = anisotropic(40, 4)
    torch.manual_seed(5)
    wanted = torch.rand(3)
    torch.manual_seed(5)
    with torch.no_grad():
        one = Flow(layers=2, steps=5, seed=3).fit_transform(x)
    assert torch.equal(torch.rand(3), wanted)
    assert torch.equal(one, Flow(layers=2, steps=5, seed=3).fit_transform(x))
    assert not torch.equal(one, Flow(layers=2, steps=5, seed=4).fit_transform(x))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: Flow().fit(torch.randn(5, 1)), "at least two dimensions"),
        (lambda: Flow().fit(torch.randn(1, 5)), "at least two samples"),
        (lambda: Flow().fit(torch.ones(5, 3)), "vary in every dimension but got 3 in which they are equal"),
        (lambda: Flow(layers=0).fit(anisotropic()), "layers as a whole number of at least 1 but got 0. Try layers=4"),
        (lambda: Flow(steps=-1).fit(anisotropic()), "steps as a whole number of at least 0"),
        (lambda: Flow(seed=None).fit(anisotropic()), "seed as a whole number"),  # type: ignore[arg-type]
        (lambda: Flow(learning_rate=-1.0).fit(anisotropic()), "learning_rate above 0 but got -1"),
        (lambda: Flow(steps=50, learning_rate=1e6).fit(anisotropic()), "a finite likelihood in step"),
    ],
)
def test_one_line(call: object, words: str) -> None:
    with pytest.raises(UnsmoothError, match=words):
        call()  # type: ignore[operator]


def test_settings_changed_after_fitting_do_not_spoil_what_is_saved(tmp_path: Path) -> None:
    x = anisotropic(60)
    fitted = Flow(layers=2, hidden=4, steps=3).fit(x)
    wanted = fitted.transform(x)
    again = load(fitted.set_params(layers=3, hidden=None, seed=-1).save(tmp_path / "flow"))
    assert torch.equal(again.transform(x), wanted)
    assert again.get_params() == fitted.get_params()


def test_likelihoods_have_more_digits_than_half_precision() -> None:
    x = anisotropic(60)
    fitted = Flow(layers=2, hidden=4, steps=3).fit(x)
    for half in (x.to(torch.bfloat16), x.to(torch.float16), x.numpy().astype(numpy.float16)):
        exact = half.double() if isinstance(half, torch.Tensor) else torch.from_numpy(half).double()
        found = torch.as_tensor(fitted.score_samples(half))
        assert found.dtype == torch.float32
        torch.testing.assert_close(found.double(), fitted.score_samples(exact), rtol=1e-6, atol=1e-6)


def test_a_seed_that_no_generator_takes() -> None:
    with pytest.raises(UnsmoothError, match="seed as a whole number from 0 to"):
        Flow(seed=2**64).fit(anisotropic(60))
