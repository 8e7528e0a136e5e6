"""Attention maps alone: eigenvalues, norms, contraction, and random ones to compare with."""

from __future__ import annotations

from typing import Literal

import numpy
import pytest
import torch

from tests.spectra.references import causal_maps, random_maps
from unsmooth.errors import UnsmoothError
from unsmooth.spectra import attention_spectrum, random_markov, random_second_eigenvalue, random_softmax


def others(values: numpy.ndarray) -> numpy.ndarray:
    """All but the one nearest to 1."""
    return numpy.delete(values, numpy.abs(values - 1).argmin())


@pytest.mark.parametrize("route", ["dense", "auto"])
@pytest.mark.parametrize("n", [9, 90])
def test_spectrum_against_numpy(n: int, route: str) -> None:
    maps = random_maps(5, n, temperature=2.0)
    found = attention_spectrum(maps, route=route)
    centre = numpy.eye(n) - 1 / n
    # The fast route promises one per cent where it does not fall back.
    accuracy = 1e-9 if route == "dense" else 0.01
    for head, one in enumerate(maps.numpy()):
        values = others(numpy.linalg.eigvals(one))
        assert found.second_eigenvalue[head] == pytest.approx(numpy.abs(values).max(), rel=accuracy)
        assert found.least_real[head] == pytest.approx(values.real.min(), rel=accuracy)
        assert found.quotient_norm[head] == pytest.approx(numpy.linalg.norm(centre @ one @ centre, 2), abs=1e-9)
        pairs = numpy.abs(one[:, None] - one[None]).sum(-1).max() / 2
        assert found.dobrushin[head] == pytest.approx(pairs, abs=1e-9)
        rows = -(one * numpy.log(one)).sum(1) / numpy.log(n)
        assert found.entropy[head] == pytest.approx(rows.mean(), abs=1e-9)


def test_causal_maps_have_their_eigenvalues_on_the_diagonal() -> None:
    maps = causal_maps(4, 40)
    for causal in (None, True):
        found = attention_spectrum(maps, causal)
        for head, one in enumerate(maps.numpy()):
            diagonal = numpy.sort(numpy.diag(one))
            assert found.second_eigenvalue[head] == pytest.approx(diagonal[-2], abs=1e-12)
            assert found.least_real[head] == pytest.approx(diagonal[0], abs=1e-12)


def test_causal_and_bidirectional_heads_in_one_call() -> None:
    maps = torch.cat([causal_maps(1, 12), random_maps(1, 12)])
    both = attention_spectrum(maps)
    for head in range(2):
        alone = attention_spectrum(maps[head : head + 1])
        assert both.second_eigenvalue[head] == alone.second_eigenvalue[0]
        assert both.entropy[head] == alone.entropy[0]


def test_uniform_attention_leaves_nothing() -> None:
    found = attention_spectrum(torch.full((1, 5, 5), 0.2))
    assert found.second_eigenvalue.item() == pytest.approx(0.0, abs=1e-6)
    assert found.quotient_norm.item() == pytest.approx(0.0, abs=1e-6)
    assert found.dobrushin.item() == pytest.approx(0.0, abs=1e-6)
    assert found.entropy.item() == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("entropy", [0.05, 0.4, 0.8, 0.97])
def test_random_markov_has_the_entropy_asked_for(entropy: float, causal: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    samples = torch.stack([random_markov(120, entropy, generator, causal) for _ in range(20)])
    torch.testing.assert_close(samples.sum(-1), torch.ones(20, 120, dtype=torch.float64))
    if causal:
        assert float(samples.triu(1).abs().max()) == 0.0
        assert float(samples[:, 0, 0].min()) == 1.0
    keys = torch.arange(1, 121).double() if causal else torch.full((120,), 120.0).double()
    rows = -torch.xlogy(samples, samples).sum(-1)[:, 1:] / keys.log()[1:]
    assert float(rows.mean()) == pytest.approx(entropy, abs=0.01)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("null", ["dirichlet", "softmax"])
@pytest.mark.parametrize("entropy", [0.45, 0.75, 0.93])
def test_random_second_eigenvalue_against_samples(
    entropy: float, null: Literal["dirichlet", "softmax"], causal: bool
) -> None:
    """Between the sizes and entropies of the table."""
    generator = torch.Generator().manual_seed(1)
    draw = random_markov if null == "dirichlet" else random_softmax
    maps = [draw(50, entropy, generator, causal).numpy() for _ in range(150)]
    seconds = [numpy.sort(numpy.abs(numpy.linalg.eigvals(one)))[-2] for one in maps]
    for quantile, rel in ((0.5, 0.03), (0.95, 0.12)):
        found = random_second_eigenvalue(50, entropy, causal, null=null, quantile=quantile)
        assert found == pytest.approx(numpy.quantile(seconds, quantile), rel=rel)


def test_a_softmax_of_equal_entropy_has_the_larger_second_eigenvalue() -> None:
    for entropy in (0.5, 0.8, 0.95):
        least = random_second_eigenvalue(200, entropy)
        assert random_second_eigenvalue(200, entropy, quantile=0.95) > least
        assert random_second_eigenvalue(200, entropy, null="softmax") > 1.05 * least


@pytest.mark.parametrize("causal", [False, True])
def test_random_softmax_has_the_entropy_asked_for(causal: bool) -> None:
    a_NN = random_softmax(80, 0.7, torch.Generator().manual_seed(0), causal)
    keys = torch.arange(1, 81).double() if causal else torch.full((80,), 80.0).double()
    rows = -torch.xlogy(a_NN, a_NN).sum(-1)[causal:] / keys.log()[causal:]
    assert float(rows.mean()) == pytest.approx(0.7, abs=1e-4)
    assert float(a_NN.triu(1).max() > 0) == (not causal)


def test_random_markov_follows_its_generator() -> None:
    first, second, other = (random_markov(8, 0.5, torch.Generator().manual_seed(seed)) for seed in (4, 4, 5))
    assert torch.equal(first, second)
    assert not torch.equal(first, other)


@pytest.mark.parametrize(
    ("maps", "words"),
    [
        (torch.full((1, 2, 3), 1 / 3), r"\(heads, n, n\)"),
        (torch.full((2, 2), 0.5), r"\(heads, n, n\)"),
        (torch.ones(1, 1, 1), "two tokens or more"),
        (torch.full((1, 2, 2), 0.4), "sum to 1"),
        (torch.full((1, 2, 2), torch.nan), "finite"),
        (torch.ones(0, 2, 2), "one head or more"),
    ],
)
def test_bad_maps_are_told(maps: torch.Tensor, words: str) -> None:
    with pytest.raises(UnsmoothError, match=words):
        attention_spectrum(maps)


def test_maps_that_only_claim_to_be_causal_are_told() -> None:
    with pytest.raises(UnsmoothError, match="causal"):
        attention_spectrum(random_maps(1, 4), causal=True)


def test_impossible_randomness_is_told() -> None:
    with pytest.raises(UnsmoothError, match="between 0 and 1"):
        random_markov(8, 1.0)
    with pytest.raises(UnsmoothError, match="two tokens"):
        random_second_eigenvalue(1, 0.5)
    with pytest.raises(UnsmoothError, match=r"of 0\.5 or"):
        random_second_eigenvalue(8, 0.5, quantile=0.9)
    with pytest.raises(UnsmoothError, match="dirichlet"):
        random_second_eigenvalue(8, 0.5, null="normal")  # type: ignore[arg-type]
