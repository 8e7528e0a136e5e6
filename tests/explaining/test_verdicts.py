"""Verdicts on layers whose fate is known because they were built for it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.explaining.seeing import encoder, found_by_spectra, set_values, streams
from unsmooth.explaining import spectral


def verdicts_of(model: nn.Module, data: Any = None, **options: Any) -> list[str]:
    return [layer.verdict for layer in found_by_spectra(model, data, **options).layers]


@torch.no_grad()
def negated(model: nn.TransformerEncoder) -> nn.TransformerEncoder:
    for layer in model.layers:
        layer.norm1.weight.neg_()
    return model


# Tokens of one length and little alike, so that the branch and not the scale of the stream decides.
DATA = [None, streams()]
DATA_NAMES = ["weights", "data"]


@pytest.mark.parametrize("data", DATA, ids=DATA_NAMES)
@pytest.mark.parametrize("heads", [1, 2, 4])
@pytest.mark.parametrize("norm_first", [True, False], ids=["pre", "post"])
def test_half_the_identity_smooths_and_its_negative_does_not(norm_first: bool, heads: int, data: Tensor | None) -> None:
    model = encoder(heads=heads, norm_first=norm_first)
    assert set(verdicts_of(set_values(model, 0.5), data)) == {"smoothing"}
    assert not set(verdicts_of(set_values(model, -0.5), data)) & {"smoothing", "undecided"}


@pytest.mark.parametrize("data", DATA, ids=DATA_NAMES)
def test_negating_the_weight_of_a_norm_before_the_branch_turns_it(data: Tensor | None) -> None:
    assert set(verdicts_of(negated(set_values(encoder(), 0.5)), data)) <= {"sharpening", "preserving"}
    assert set(verdicts_of(negated(set_values(encoder(), -0.5)), data)) == {"smoothing"}


@pytest.mark.parametrize("strength", [0.5, -0.5])
def test_negating_the_weight_of_a_norm_after_the_addition_turns_nothing(strength: float) -> None:
    """It negates stream and branch alike, and the words must not promise otherwise."""
    plain = found_by_spectra(set_values(encoder(norm_first=False), strength))
    turned = found_by_spectra(negated(set_values(encoder(norm_first=False), strength)))
    for one, other in zip(plain.layers, turned.layers, strict=True):
        assert one.verdict == other.verdict
        assert one.mean_modulus == pytest.approx(other.mean_modulus, rel=1e-9)
        assert "negating" not in one.change
        assert one.flip_scale is None


def sinking(dim: int, seed: int) -> Tensor:
    """A matrix whose eigenvalues all have negative real parts, complex pairs among them."""
    noise = torch.randn(dim, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    values = torch.linalg.eigvals(noise)
    return (noise - (float(values.real.max()) + 0.2) * torch.eye(dim)).float()


@torch.no_grad()
def scaled_norms(model: nn.TransformerEncoder, factor: float) -> nn.TransformerEncoder:
    for layer in model.layers:
        layer.norm1.weight.fill_(factor)
    return model


@pytest.mark.parametrize("seed", range(4))
def test_flip_scale_is_where_the_verdict_turns(seed: int) -> None:
    """A stream of scale σ is a norm weight of 1/σ: the verdict just below and above, and no σ in between turns it."""
    matrix = sinking(8, seed)
    turns = {layer.flip_scale for layer in found_by_spectra(set_values(encoder(layers=1), matrix)).layers}
    (flip,) = turns
    centred = (np.eye(8) - 1 / 8) @ matrix.double().numpy()
    values = np.linalg.eigvals(centred)
    values = values[np.abs(values) > 1e-9]
    if (values.real > 0).any():  # centring may bring an eigenvalue to the other side
        assert flip is None
        return
    assert flip is not None
    grid = np.geomspace(flip / 100, flip * 100, 2001)
    smooths = np.abs(1 + values[None] / grid[:, None]).max(axis=1) > 1 + 1e-9
    assert grid[smooths].max() == pytest.approx(flip, rel=0.01)
    assert smooths[grid < 0.99 * flip].all()
    assert not smooths[grid > 1.01 * flip].any()
    below, above = (set_values(encoder(layers=1), matrix) for _ in range(2))
    assert verdicts_of(scaled_norms(below, 1 / (0.9 * flip))) == ["smoothing"]
    assert "smoothing" not in verdicts_of(scaled_norms(above, 1 / (1.1 * flip)))


@pytest.mark.parametrize("strength", [-0.5, -4.0])
@pytest.mark.parametrize("heads", [1, 2])
def test_data_do_not_move_the_flip_scale(strength: float, heads: int) -> None:
    """σ = |λ|/2 for one negative λ; the zero that a LayerNorm's centring gives has no say."""
    model = set_values(encoder(heads=heads), strength)
    for data in DATA:
        explanation = found_by_spectra(model, data)
        for one in (*explanation.layers, *explanation.heads):
            assert one.flip_scale == pytest.approx(-strength / 2, rel=1e-6)


@pytest.mark.parametrize(("strength", "verdict"), [(0.5, "smoothing"), (-0.1, "sharpening"), (-4.0, "smoothing")])
def test_what_would_change_a_verdict_follows_from_it(strength: float, verdict: str) -> None:
    (layer,) = found_by_spectra(set_values(encoder(layers=1), strength), streams()).layers
    assert layer.verdict == verdict
    assert layer.scale is not None
    if strength == 0.5:
        assert layer.flip_scale is None
        assert "No scale of the stream alone does it" in layer.change
    elif strength == -0.1:
        assert "σ below 0.05" in layer.change
    else:
        assert "σ above 2" in layer.change
    assert "positive real part" not in layer.change or strength > 0


def test_a_verdict_without_data_says_what_it_supposes() -> None:
    (layer,) = found_by_spectra(set_values(encoder(layers=1), 0.5)).layers
    assert "σ = 1, for want of data" in layer.reason
    assert "were attention to average all tokens" in layer.reason
    assert "leaves out MLP" in layer.reason
    assert layer.scale is None
    assert layer.rest_modulus is None
    assert layer.similarity_before is None
    assert layer.measured is None
    assert layer.predicted == {}
    assert layer.breakdown is None
    assert layer.gains is None
    assert layer.margin == pytest.approx(np.log(layer.mean_modulus), rel=1e-9)


def test_a_verdict_with_data_says_at_which_scale() -> None:
    explanation = found_by_spectra(set_values(encoder(layers=1), 0.5), streams())
    (layer,) = explanation.layers
    stream = streams().flatten(0, 1).double().numpy()
    sigma = np.median(np.sqrt(stream.var(axis=1) + 1e-5))
    assert layer.scale == pytest.approx(np.partition(np.sqrt(stream.var(axis=1) + 1e-5), 8)[8], rel=1e-5)
    assert layer.scale == pytest.approx(sigma, rel=0.1)
    assert f"σ = {layer.scale:.3g}" in layer.reason
    assert all("other heads" in head.reason for head in explanation.heads)


def test_too_many_eigenvalues_to_list(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a wide layer only the outermost eigenvalue is known: enough for the verdict, not for where it turns."""
    matrix = torch.diag(torch.tensor([-6.0, 1.0, -1.0, -1.0, -1.0, -1.0, -1.0, -1.0]))
    model = set_values(encoder(layers=1), matrix)
    (whole,) = found_by_spectra(model, streams()).layers
    monkeypatch.setattr(spectral, "LARGEST_CLOUD", 4)
    (short,) = found_by_spectra(model, streams()).layers
    assert len(whole.eigenvalues) == 8
    assert len(short.eigenvalues) == 1
    assert short.verdict == whole.verdict == "smoothing"
    assert short.mean_modulus == pytest.approx(whole.mean_modulus, rel=1e-6)
    assert whole.flip_scale is None, "an eigenvalue near 1 smooths at every scale"
    assert short.flip_scale is None, "of which the outermost eigenvalue knows nothing"
    for layer in (whole, short):
        assert "positive real part" not in layer.change, "it is not the eigenvalue that dominates"
