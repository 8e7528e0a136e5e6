"""The projection onto the interval, against dense float64 references."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.linalg
import torch

from tests.remedies.hosts import BY_NAME
from unsmooth import remedies
from unsmooth.models import value_projection
from unsmooth.remedies.spectral.interval import Interval, eigenvalues, psi_for
from unsmooth.remedies.spectral.newton import nearest_orthonormal, off_orthonormal, orthonormal_rows
from unsmooth.remedies.spectral.projecting import HeadMaps, distances, project


def random_heads(heads: int, width: int, dim: int, gain: float = 1.0) -> HeadMaps:
    generator = torch.Generator().manual_seed(heads + width)
    make = lambda: gain * torch.randn(heads, width, dim, dtype=torch.float64, generator=generator) / dim**0.5  # noqa: E731
    return HeadMaps(make(), make())


def dense(heads: HeadMaps) -> np.ndarray:
    """H_g (G, D, D)."""
    return np.einsum("ged,gec->gdc", heads.v_GED.numpy(), heads.w_GED.numpy())


def nearest(h: np.ndarray, low: float, high: float) -> np.ndarray:
    """The nearest symmetric matrix with eigenvalues in [low, high], by a dense eigendecomposition."""
    values, vectors = np.linalg.eigh((h + h.T) / 2)
    return vectors @ np.diag(values.clip(low, high)) @ vectors.T


@pytest.mark.parametrize("sign", [-1, 1])
@pytest.mark.parametrize(("heads", "width", "dim"), [(3, 4, 16), (1, 8, 8), (2, 6, 12)])
def test_projection_is_the_nearest_in_the_interval(sign, heads, width, dim):
    maps, interval = random_heads(heads, width, dim, gain=3.0), Interval(sign, 1.0)
    vectors, values = project(maps, interval)
    for h, rows, spectrum in zip(dense(maps), vectors.numpy(), values.numpy(), strict=True):
        np.testing.assert_allclose(
            rows.T @ np.diag(spectrum) @ rows, nearest(h, interval.low, interval.high), atol=1e-10
        )
        np.testing.assert_allclose(rows @ rows.T, np.eye(width), atol=1e-12)


def test_distances_against_dense_norms():
    one, two = random_heads(3, 4, 16), random_heads(3, 4, 16, gain=0.5)
    found = distances(one, two)
    h, other = dense(one), dense(two)
    assert found["distance"] == pytest.approx(np.linalg.norm(other.sum(0) - h.sum(0)) / np.linalg.norm(h.sum(0)))
    assert found["distance_per_head"] == pytest.approx(np.linalg.norm(other - h) / np.linalg.norm(h))


@pytest.mark.parametrize("basis", ["schur", "general", "orthogonal", "gram"])
@pytest.mark.parametrize("host", ["bert", "llama"])
def test_report_says_how_far_the_model_was_moved(basis, host):
    model = BY_NAME[host].model().double()
    before = value_projection(model, 2).summed().numpy()
    remedies.apply(model, "sharpen", basis=basis)
    after = value_projection(model, 2).summed().numpy()
    report = remedies.applied(model)[0].report[2]
    assert report["distance"] == pytest.approx(np.linalg.norm(after - before) / np.linalg.norm(before), rel=1e-6)
    assert 0 < report["distance_per_head"] < 1


@pytest.mark.parametrize("basis", ["schur", "general", "orthogonal", "gram"])
def test_a_layer_that_sharpens_already_is_left_as_it_is(basis):
    # Every head has its own slots of an orthonormal V and negative eigenvalues: nothing to project.
    model = BY_NAME["bert"].model().double()
    v = np.linalg.qr(np.random.default_rng(0).normal(size=(32, 32)))[0]
    spectrum = -np.linspace(0.05, 1.0, 32)
    with torch.no_grad():
        model.encoder.layer[1].attention.self.value.weight.copy_(torch.tensor(v.T))
        model.encoder.layer[1].attention.output.dense.weight.copy_(torch.tensor(v @ np.diag(spectrum)))
    remedies.apply(model, "sharpen", basis=basis)
    np.testing.assert_allclose(value_projection(model, 1).summed().numpy(), v @ np.diag(spectrum) @ v.T, atol=1e-8)
    assert remedies.applied(model)[0].report[1]["distance_per_head"] < 1e-6


@pytest.mark.parametrize("shape", [(6, 6), (4, 9)])
def test_newton_schulz_finds_the_polar_factor(shape):
    x = np.linalg.qr(np.random.default_rng(1).normal(size=(shape[1], shape[0])))[0].T
    x = x + 0.02 * np.random.default_rng(2).normal(size=shape)
    polar = scipy.linalg.polar(x)[0]
    rows = torch.tensor(x)
    np.testing.assert_allclose(orthonormal_rows(rows[None], 2)[0].numpy(), polar, atol=1e-8)
    np.testing.assert_allclose(nearest_orthonormal(rows).numpy(), polar, atol=1e-13)


def test_newton_schulz_survives_a_step_that_is_much_too_long():
    x = np.random.default_rng(3).normal(size=(1, 5, 8)) * 10
    for _ in range(12):
        x = orthonormal_rows(torch.tensor(x), 2).numpy()
    np.testing.assert_allclose(x[0] @ x[0].T, np.eye(5), atol=1e-12)


def test_nearest_orthonormal_completes_rows_that_depend_on_each_other():
    rows = torch.tensor([[1.0, 0.0, 0.0], [1.0, 0.0, 0.0]])
    found = nearest_orthonormal(rows)
    assert off_orthonormal(found) < 1e-6


def test_nearest_orthonormal_of_its_own_result_changes_no_bit():
    once = nearest_orthonormal(torch.randn(96, 128, generator=torch.Generator().manual_seed(0)))
    assert torch.equal(nearest_orthonormal(once), once)


@pytest.mark.parametrize("precision", ["high", "medium"])
def test_newton_schulz_does_not_use_the_precision_of_the_model(precision):
    before = torch.get_float32_matmul_precision()
    rows = torch.eye(64)[None] + 1e-3 * torch.randn(1, 64, 64, generator=torch.Generator().manual_seed(0))
    torch.set_float32_matmul_precision(precision)
    try:
        with torch.autocast("cpu", torch.bfloat16):
            found = orthonormal_rows(rows, 2)[0]
        assert torch.get_float32_matmul_precision() == precision
    finally:
        torch.set_float32_matmul_precision(before)
    assert np.linalg.norm(found.double().numpy() @ found.double().numpy().T - np.eye(64), 2) < 1e-5


@pytest.mark.parametrize("how", ["clip", "sigmoid", "square"])
@pytest.mark.parametrize("sign", [-1, 1])
def test_psi_stands_for_the_eigenvalues_it_was_made_from(how, sign):
    interval = Interval(sign, 0.8)
    wanted = sign * torch.tensor([0.1, 0.4, 0.7], dtype=torch.float64)
    torch.testing.assert_close(eigenvalues(psi_for(wanted, how, interval), how, interval), wanted)


def test_clip_passes_gradients_outside_the_interval():
    psi = torch.tensor([-3.0, -0.5, 2.0], requires_grad=True)
    clipped = eigenvalues(psi, "clip", Interval(-1, 1.0))
    assert clipped.tolist() == [-1.0, -0.5, 0.0]
    (clipped * torch.tensor([1.0, 2.0, 3.0])).sum().backward()
    assert psi.grad.tolist() == [1.0, 2.0, 3.0]
