"""Single heads: which side dominates, by every route."""

from __future__ import annotations

import math

import numpy
import pytest
import torch

from tests.spectra.references import causal_maps, full_operator, head_products, random_maps, random_weights
from unsmooth.errors import UnsmoothError
from unsmooth.spectra import head_dominance, head_eigenvalues, phase_cosine, token_modes


def split_spectrum(one: numpy.ndarray, product: numpy.ndarray) -> tuple[float, float]:
    """Largest modulus of the whole operator on equal tokens and on the rest, by an orthogonal change of basis."""
    n, d = len(one), len(product)
    operator = full_operator(torch.from_numpy(one)[None], [product])
    basis = numpy.linalg.qr(numpy.concatenate([numpy.ones((n, 1)), numpy.eye(n)[:, 1:]], axis=1))[0]
    rotation = numpy.kron(numpy.eye(d), basis)
    turned = rotation.T @ operator @ rotation
    equal = numpy.arange(n * d) % n == 0
    # Equal tokens stay equal: nothing leads from them to the rest.
    assert numpy.abs(turned[numpy.ix_(~equal, equal)]).max() < 1e-12
    return tuple(
        float(numpy.abs(numpy.linalg.eigvals(turned[numpy.ix_(part, part)])).max()) for part in (equal, ~equal)
    )


@pytest.mark.parametrize("maps", [random_maps(6, 5, temperature=3.0), causal_maps(6, 5)])
def test_moduli_are_those_of_the_whole_operator(maps: torch.Tensor) -> None:
    w_v, w_o = random_weights(6, 4, 2)
    found = head_dominance(maps, head_eigenvalues(w_v, w_o))
    for head, product in enumerate(head_products(w_v, w_o)):
        mean, rest = split_spectrum(maps[head].numpy(), product)
        assert found.mean_modulus[head] == pytest.approx(mean, abs=1e-6)
        assert found.rest_modulus[head] == pytest.approx(rest, abs=1e-6)
        assert found.margin[head] == pytest.approx(math.log(mean / rest), abs=1e-6)


@pytest.mark.parametrize("smallest", [-0.6, 0.0, 0.4])
def test_disc_rule_for_real_attention_spectra(smallest: float) -> None:
    # Two tokens: eigenvalues 1 and m. The mean dominates outside a disc around -1/(1+m) that touches 0.
    share = (1 - smallest) / 2
    maps = torch.tensor([[[1 - share, share], [share, 1 - share]]], dtype=torch.float64)
    centre = -1 / (1 + smallest)
    for angle in torch.linspace(0.0, 2 * math.pi, 9).tolist()[:-1]:
        for radius, dominates in ((0.9, False), (1.1, True)):
            value = centre + radius * abs(centre) * complex(math.cos(angle), math.sin(angle))
            values = torch.tensor([[value, value.conjugate()]], dtype=torch.complex128)
            found = head_dominance(maps, values, full_rank=True)[0]
            assert (found.margin > 0) is dominates


def cyclic(n: int, keep: float) -> torch.Tensor:
    """Every token looks at the next, and a little at all."""
    return (keep * torch.eye(n).roll(1, 1) + (1 - keep) / n)[None].double()


@pytest.mark.parametrize("n", [12, 197])
def test_near_cyclic_attention_is_not_mean_dominant_though_the_disc_rule_says_so(n: int) -> None:
    value = 0.235 + 0.187j
    found = head_dominance(cyclic(n, 0.97), torch.tensor([[value, value.conjugate()]]), modes=True)[0]
    assert found.mean_modulus == pytest.approx(abs(1 + value), abs=1e-6)
    turns = 0.97 * numpy.exp(2j * numpy.pi * numpy.arange(1, n) / n)
    assert found.rest_modulus == pytest.approx(numpy.abs(1 + turns * value).max(), abs=2e-3)
    assert found.verdict == "sharpening"
    assert found.token_eigenvalue is not None
    # The mode runs through all phases once or more: its tokens cancel.
    assert found.mode_cosine == pytest.approx(-1 / (n - 1), abs=1e-6)


def test_positive_eigenvalues_smooth_and_small_negative_ones_never_do() -> None:
    maps = random_maps(20, 30, temperature=4.0)
    positive = head_dominance(maps, torch.linspace(0.1, 3.0, 20)[:, None])
    assert set(positive.verdict) == {"smoothing"}
    negative = head_dominance(maps, -torch.linspace(0.1, 1.0, 20)[:, None], full_rank=True)
    assert set(negative.verdict) == {"sharpening"}


def test_null_space_holds_both_sides_at_one() -> None:
    found = head_dominance(causal_maps(1, 6), torch.tensor([[-0.5]]))[0]
    assert (found.mean_modulus, found.rest_modulus, found.verdict) == (1.0, 1.0, "preserving")
    assert found.feature_eigenvalue == 0
    assert found.token_eigenvalue is None
    assert found.mode_cosine is None


def test_causal_maps_take_the_diagonal() -> None:
    maps = causal_maps(3, 100)
    values = torch.tensor([[0.8], [-2.5], [-3.5]])
    found = head_dominance(maps, values)
    assert set(found.route) == {"causal"}
    for head, one in enumerate(maps.numpy()):
        diagonal = numpy.sort(numpy.diag(one))[:-1]
        wanted = max(1.0, numpy.abs(1 + diagonal * values[head].item()).max())
        assert found.rest_modulus[head] == pytest.approx(wanted, abs=1e-6)


def kinds_of_maps(heads: int, n: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    place = torch.arange(n).float()
    band = -((place[:, None] - place[None, :] - 0.5) ** 2) / 8.0
    logits = torch.randn(heads, n, n, generator=generator)
    return torch.cat([logits, 4.0 * logits, 12.0 * logits, logits + band, 0.05 * logits]).softmax(dim=-1)


@pytest.mark.parametrize("full_rank", [False, True])
def test_fast_route_gives_the_verdicts_of_all_eigenvalues(full_rank: bool) -> None:
    maps = kinds_of_maps(60, 80)
    generator = torch.Generator().manual_seed(1)
    size = torch.exp(3.0 * torch.rand(len(maps), 1, generator=generator) - 2.0)
    centre = 2.0 * torch.rand(len(maps), 1, generator=generator) - 1.0
    values = size * (centre + 0.5 * torch.randn(len(maps), 16, generator=generator, dtype=torch.complex64))
    fast = head_dominance(maps, values, full_rank=full_rank)
    for head, one in enumerate(maps.double().numpy()):
        spectrum = numpy.linalg.eigvals(one)
        spectrum = numpy.delete(spectrum, numpy.abs(spectrum - 1).argmin())
        lam = values[head].numpy().astype(complex)
        floor = 0.0 if full_rank else 1.0
        mean = max(floor, numpy.abs(1 + lam).max())
        rest = max(floor, numpy.abs(1 + spectrum[:, None] * lam[None]).max())
        margin = math.log(mean / rest)
        if abs(margin) > 1.1e-3:
            assert fast.verdict[head] == ("smoothing" if margin > 0 else "sharpening")
        # Estimates of the rest may be off by some of what attention leaves of λ, never by more.
        assert abs(fast.rest_modulus[head] - rest) < 0.3 * numpy.abs(lam).max() * numpy.abs(spectrum).max() + 1e-6
    assert fast.route.count("ritz") > 0.8 * len(fast)


def test_dense_route_is_exact_on_large_maps() -> None:
    maps = kinds_of_maps(2, 80)
    values = torch.randn(len(maps), 3, generator=torch.Generator().manual_seed(2))
    found = head_dominance(maps, values, route="dense")
    assert set(found.route) == {"dense"}
    for head, one in enumerate(maps.double().numpy()):
        spectrum = numpy.linalg.eigvals(one)
        spectrum = numpy.delete(spectrum, numpy.abs(spectrum - 1).argmin())
        rest = max(1.0, numpy.abs(1 + spectrum[:, None] * values[head].numpy()[None]).max())
        assert found.rest_modulus[head] == pytest.approx(rest, abs=1e-6)


def test_full_rank_route_when_the_spectrum_is_exhausted_early() -> None:
    # All other eigenvalues are 0.9: one product already spans all there is.
    n = 100
    maps = (0.9 * torch.eye(n) + 0.1 / n)[None]
    found = head_dominance(maps, torch.tensor([[-0.5]]), full_rank=True)[0]
    assert (found.mean_modulus, found.rest_modulus) == pytest.approx((0.5, 0.55), abs=1e-5)
    assert found.verdict == "sharpening"


def test_modes_are_right_eigenvectors() -> None:
    maps = random_maps(4, 20, temperature=3.0)
    for head, one in enumerate(maps.numpy()):
        values, vectors = numpy.linalg.eig(one)
        for value, vector in list(zip(values, vectors.T, strict=True))[1:4]:
            found = token_modes(maps[head : head + 1], torch.tensor([value]))[0].numpy()
            assert abs(numpy.vdot(found, vector)) == pytest.approx(1.0, abs=1e-6)
            units = vector / numpy.abs(vector)
            cosines = numpy.real(units[:, None] * units[None].conj())
            wanted = (cosines.sum() - 20) / (20 * 19)
            assert phase_cosine(torch.from_numpy(found)[None]).item() == pytest.approx(wanted, abs=1e-6)


def test_mode_of_smallest_eigenvalue_has_mixed_signs() -> None:
    # Two groups that each look at the other: the smallest eigenvalue is -0.8, its mode +1 on one, -1 on the other.
    sign = torch.tensor([1.0, 1.0, -1.0, -1.0])
    maps = (0.25 - 0.2 * sign[:, None] * sign[None])[None]
    found = head_dominance(maps, torch.tensor([[-1.0]]), modes=True)[0]
    assert found.token_eigenvalue == pytest.approx(-0.8, abs=1e-6)
    assert found.feature_eigenvalue == pytest.approx(-1.0)
    assert found.mode_cosine == pytest.approx(-1 / 3, abs=1e-6)
    assert head_dominance(maps, torch.tensor([[1.0]]), modes=True)[0].mode_cosine == 1.0


def test_unnormalised_rows_when_asked() -> None:
    maps = 0.5 * random_maps(3, 6, temperature=2.0)
    values = torch.tensor([[0.8], [-0.4], [1.5]])
    found = head_dominance(maps, values, allow_unnormalised=True, full_rank=True)
    twice = head_dominance(2 * maps, values / 2, full_rank=True)
    torch.testing.assert_close(found.mean_modulus, twice.mean_modulus)
    torch.testing.assert_close(found.rest_modulus, twice.rest_modulus)


@pytest.mark.parametrize(
    ("maps", "values", "words"),
    [
        (torch.full((1, 2, 2), 0.4), torch.ones(1, 1), "allow_unnormalised"),
        (torch.ones(1, 1, 1), torch.ones(1, 1), "two tokens"),
        (torch.full((1, 2, 2), 0.5), torch.ones(2, 1), "eigenvalues"),
        (torch.full((1, 2, 2), 0.5), torch.ones(1, 0), "one eigenvalue"),
        (torch.full((1, 2, 2), 0.5), torch.tensor([[torch.nan]]), "finite"),
        (torch.full((1, 2, 3), 0.5), torch.ones(1, 1), r"\(heads, n, n\)"),
    ],
)
def test_bad_input_is_told(maps: torch.Tensor, values: torch.Tensor, words: str) -> None:
    with pytest.raises(UnsmoothError, match=words):
        head_dominance(maps, values)


def test_unknown_route_is_told() -> None:
    with pytest.raises(UnsmoothError, match="'auto' or 'dense'"):
        head_dominance(random_maps(1, 3), torch.ones(1, 1), route="quick")  # type: ignore[arg-type]
