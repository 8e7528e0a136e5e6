"""All-but-the-top and whitening against closed forms in numpy."""

from __future__ import annotations

import numpy
import pytest
import torch

from tests.posthoc.samples import anisotropic
from unsmooth.errors import UnsmoothError
from unsmooth.functional import mean_cosine
from unsmooth.posthoc import AllButTheTop, Whitening


@pytest.mark.parametrize("components", [0, 1, 3, 6])
def test_all_but_the_top_is_what_the_last_directions_hold(components: int) -> None:
    x = anisotropic().numpy()
    centred = x - x.mean(axis=0)
    _, _, directions = numpy.linalg.svd(centred)
    kept = directions[components:]
    numpy.testing.assert_allclose(AllButTheTop(components).fit_transform(x), centred @ kept.T @ kept, atol=1e-10)


@pytest.mark.parametrize(("dimensions", "wanted"), [(6, 1), (100, 1), (250, 2), (300, 3)])
def test_a_hundredth_of_the_dimensions_by_default(dimensions: int, wanted: int) -> None:
    x = torch.randn(320, dimensions, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    made = AllButTheTop().fit_transform(x)
    assert int(torch.linalg.matrix_rank(made - made.mean(dim=0))) == dimensions - wanted


def test_other_samples_lose_the_directions_of_those_learned_from() -> None:
    x, y = anisotropic(seed=0), anisotropic(seed=1)
    fitted = AllButTheTop(2).fit(x)
    assert (fitted.transform(y) @ fitted.directions_.mT).abs().max() < 1e-10
    torch.testing.assert_close(fitted.transform(y[:3]), fitted.transform(y)[:3])


@pytest.mark.parametrize("dimensions", [None, 6, 4, 1])
def test_covariance_is_one(dimensions: int | None) -> None:
    z = Whitening(dimensions).fit_transform(anisotropic().numpy())
    kept = z.shape[1]
    assert kept == (dimensions or 6)
    numpy.testing.assert_allclose(z.mean(axis=0), numpy.zeros(kept), atol=1e-10)
    numpy.testing.assert_allclose(numpy.cov(z.T).reshape(kept, kept), numpy.eye(kept), atol=1e-9)


def test_whitened_distances_are_mahalanobis() -> None:
    x = anisotropic().numpy()
    z = Whitening().fit_transform(x)
    inverse = numpy.linalg.inv(numpy.cov(x.T))
    for i, j in [(0, 1), (3, 7)]:
        wanted = (x[i] - x[j]) @ inverse @ (x[i] - x[j])
        assert ((z[i] - z[j]) ** 2).sum() == pytest.approx(wanted, rel=1e-9)


def test_shrunk_covariance() -> None:
    x = anisotropic(4, 6).numpy()
    fitted = Whitening(shrinkage=0.3).fit(x)
    covariance = numpy.cov(x.T)
    shrunk = 0.7 * covariance + 0.3 * numpy.trace(covariance) / 6 * numpy.eye(6)
    directions, variances = fitted.directions_.numpy(), fitted.variances_.numpy()
    numpy.testing.assert_allclose((directions * variances) @ directions.T, shrunk, atol=1e-10)


def test_back_from_whitened() -> None:
    x = anisotropic()
    fitted = Whitening().fit(x)
    torch.testing.assert_close(fitted.inverse_transform(fitted.transform(x)), x, atol=1e-10, rtol=0)
    fitted = Whitening(3).fit(x)
    centred = x - x.mean(dim=0)
    top = torch.linalg.svd(centred)[2][:3]
    nearest = centred @ top.mT @ top + x.mean(dim=0)
    torch.testing.assert_close(fitted.inverse_transform(fitted.transform(x)), nearest)


def test_fewer_samples_than_dimensions_are_told_or_whitened_where_they_vary() -> None:
    x = anisotropic(5, 20)
    with pytest.raises(UnsmoothError, match=r"the 20 directions to whiten but got 5 samples that vary in 4\. Try"):
        Whitening().fit(x)
    torch.testing.assert_close(torch.cov(Whitening(4).fit_transform(x).mT), torch.eye(4, dtype=torch.float64))
    assert Whitening(shrinkage=0.1).fit_transform(x).shape == (5, 20)


def test_both_make_embeddings_less_alike() -> None:
    x = anisotropic()
    before = mean_cosine(x[None]).item()
    for made in (AllButTheTop(), Whitening()):
        assert mean_cosine(made.fit_transform(x)[None]).item() < 0.05 < 0.5 < before


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: AllButTheTop(7).fit(anisotropic()), "components as a whole number from 0 to 6"),
        (lambda: AllButTheTop(2).fit(anisotropic(2)), "more than 2 samples to take 2 directions out"),
        (lambda: AllButTheTop(0.95).fit(anisotropic()), "components as a whole number .* got 0.95"),
        (lambda: Whitening("all").fit(anisotropic()), "dimensions as a whole number"),
        (lambda: Whitening(shrinkage="auto").fit(anisotropic()), "shrinkage from 0 to 1 but got 'auto'"),
        (lambda: Whitening(7).fit(anisotropic()), "dimensions as a whole number from 1 to 6"),
        (lambda: Whitening(shrinkage=2.0).fit(anisotropic()), "shrinkage from 0 to 1"),
        (lambda: Whitening().fit(anisotropic(1)), "at least two samples"),
        (lambda: Whitening(shrinkage=0.5).fit(torch.ones(4, 3)), "samples that vary in 0. Try other samples"),
    ],
)
def test_one_line(call: object, words: str) -> None:
    with pytest.raises(UnsmoothError, match=words):
        call()  # type: ignore[operator]


@pytest.mark.parametrize("made", [Whitening(), Whitening(1), Whitening(shrinkage=0.1), AllButTheTop(1)], ids=repr)
def test_equal_samples_do_not_vary(made: Whitening | AllButTheTop) -> None:
    # Of such numbers a mean in float64 is not always the number itself.
    one = torch.randn(64, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    with pytest.raises(UnsmoothError, match="200 samples that vary in 0"):
        made.fit(one.expand(200, 64))


def test_few_samples_far_from_zero_vary_in_one_less_than_there_are() -> None:
    x = torch.randn(10, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) + 1e9
    with pytest.raises(UnsmoothError, match="10 samples that vary in 9"):
        Whitening(10).fit(x)
    z = Whitening(9).fit_transform(x)
    torch.testing.assert_close(torch.cov(z.mT), torch.eye(9, dtype=torch.float64), atol=1e-6, rtol=0)


def test_directions_in_which_nothing_varies_are_not_taken_out() -> None:
    x = torch.zeros(100, 10)
    x[:, 0] = torch.arange(100.0)
    with pytest.raises(UnsmoothError, match=r"the 3 directions to take out but got 100 samples that vary in 1\."):
        AllButTheTop(3).fit(x)
    assert AllButTheTop(1).fit(x).transform(torch.ones(1, 10)).tolist() == [[0.0] + [1.0] * 9]
    assert AllButTheTop(0).fit(x[:1]).transform(x[:1]).abs().sum() == 0.0


def test_a_shrinkage_that_is_rounding_is_none() -> None:
    x = torch.randn(50, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) @ torch.ones(2, 8).double()
    with pytest.raises(UnsmoothError, match="50 samples that vary in 1"):
        Whitening(shrinkage=1e-18).fit(x)
    assert Whitening(shrinkage=0.1).fit_transform(x).isfinite().all()


@pytest.mark.parametrize("made", [Whitening(), AllButTheTop(2)], ids=repr)
def test_samples_that_are_refused_leave_what_was_learned(made: Whitening | AllButTheTop) -> None:
    x = anisotropic()
    wanted = made.fit(x).transform(x)
    with pytest.raises(UnsmoothError, match="samples that vary in 1"):
        made.fit(x[:, :1].expand(-1, 6) + 100.0)
    assert torch.equal(made.transform(x), wanted)
