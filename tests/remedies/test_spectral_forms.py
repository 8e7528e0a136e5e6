"""The forms of H one by one: what the Schur form reaches, an inverse that is followed, a cap for each eigenvalue."""

from __future__ import annotations

import copy
import json

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.autograd import gradcheck, gradgradcheck

from tests.remedies.hosts import BY_NAME
from unsmooth import remedies
from unsmooth.models import find_anatomy, value_projection
from unsmooth.remedies.block import sites_of
from unsmooth.remedies.spectral.general import _CompiledInverse, _Inverse
from unsmooth.remedies.spectral.gram import RescaledGram
from unsmooth.remedies.spectral.interval import Interval
from unsmooth.remedies.spectral.newton import clipped_rows, followed_inverse
from unsmooth.remedies.spectral.projecting import HeadMaps, nearest_triangular

DIM, HEADS, WIDTH = 32, 4, 8
DECAY = -np.linspace(0.0, 1.0, DIM)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def orthogonal(seed: int = 0) -> np.ndarray:
    return np.linalg.qr(np.random.default_rng(seed).normal(size=(DIM, DIM)))[0]


def jordan() -> np.ndarray:
    """Eigenvalues −1, −½ and 0, each with a single eigenvector."""
    return np.diag(np.repeat([-1.0, -0.5, 0.0], [11, 11, 10])) + np.diag(np.ones(DIM - 1), 1)


def full() -> np.ndarray:
    return np.diag(DECAY) + np.triu(np.random.default_rng(1).normal(size=(DIM, DIM)), 1)


def bert_with(triangle: np.ndarray) -> tuple[nn.Module, np.ndarray]:
    """A layer whose H is QTQᵀ, and that H."""
    model, q = BY_NAME["bert"].model().double(), orthogonal()
    attention = model.encoder.layer[1].attention
    with torch.no_grad():
        attention.self.value.weight.copy_(torch.tensor(q.T))
        attention.output.dense.weight.copy_(torch.tensor((triangle @ q.T).T))
    return model, q @ triangle @ q.T


@pytest.mark.parametrize("make", [jordan, full])
def test_what_has_real_eigenvalues_in_the_interval_is_left_as_it_is(make):
    model, wanted = bert_with(make())
    before = [value_projection(model, 1).head(head).numpy() for head in range(HEADS)]
    remedies.apply(model, "sharpen", basis="schur")
    after = value_projection(model, 1)
    np.testing.assert_allclose(after.summed().numpy(), wanted, atol=1e-9)
    for head in range(HEADS):
        np.testing.assert_allclose(after.head(head).numpy(), before[head], atol=1e-9)


def test_schur_starts_nearer_than_the_symmetric_forms():
    found = {}
    for basis in ("schur", "general", "orthogonal", "gram"):
        model = remedies.apply(BY_NAME["gpt2"].model().double(), "sharpen", basis=basis)
        found[basis] = remedies.applied(model)[0].report[1]["distance_per_head"]
    assert found.pop("schur") < 0.9 * min(found.values())


def test_nearest_triangle_is_what_the_heads_do_along_q_cut_below():
    maps = HeadMaps(random(3, 4, 16), random(3, 4, 16, seed=1))
    rows, triangle = (one.numpy() for one in nearest_triangular(maps, Interval(-1, 1.0)))
    np.testing.assert_allclose(rows @ rows.T, np.eye(12), atol=1e-12)
    heads = np.einsum("ged,gec->gdc", maps.v_GED.numpy(), maps.w_GED.numpy())
    along = np.concatenate([rows[4 * g : 4 * g + 4] @ heads[g] @ rows.T for g in range(3)])
    np.testing.assert_allclose(triangle, np.triu(along, 1) + np.diag(np.diag(along).clip(-1, 0)), atol=1e-12)


@pytest.mark.parametrize("host", ["bert", "llama"])
def test_upper_bounds_the_norm_which_is_reported(host):
    model = remedies.apply(BY_NAME[host].model().double(), "smooth", upper=0.7, limit=0.4)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("psi", "upper")):
                parameter.copy_(5 * random(*parameter.shape, seed=3))
    for block, report in remedies.applied(model)[0].report.items():
        h = value_projection(model, block).summed().numpy()
        assert report["norm"] == pytest.approx(np.linalg.norm(h, 2), rel=1e-9)
        assert 0.4 < report["norm"] <= 1.1
        assert report["upper"] == pytest.approx(0.7)
        assert (report["lowest"], report["highest"]) == (0.0, 0.4)


@pytest.mark.parametrize("host", ["bert", "llama"])
def test_gradients_of_the_general_form_are_those_of_the_pseudo_inverse(host):
    model = BY_NAME[host].model().double().eval()
    site = sites_of(find_anatomy(model))[1]
    remedies.apply(model, "sharpen", basis="general")
    form = site.block.unsmooth.sharpen.form
    weight = form.slots.parameter()
    with torch.no_grad():
        weight.add_(0.2 * random(*weight.shape))
        form.psi.copy_(-torch.rand(form.psi.shape, generator=torch.Generator().manual_seed(2)))
    along = random(*form.output_rows().shape, seed=4)
    found = torch.autograd.grad((form.output_rows() * along).sum(), [weight, form.psi])
    rows = form.slots.rows().flatten(0, 1)
    inverse = torch.linalg.pinv(rows.mT) * form.psi.unsqueeze(-1) / form.slots.group
    again = form.slots.per_query_head(inverse.view(form.slots.rows().shape))
    torch.testing.assert_close(form.output_rows(), again)
    for one, wanted in zip(found, torch.autograd.grad((again * along).sum(), [weight, form.psi]), strict=True):
        torch.testing.assert_close(one, wanted)


@pytest.mark.parametrize("shape", [(5, 5), (3, 6)])
def test_derivatives_of_the_inverse(shape):
    rows = random(*shape).requires_grad_()

    def inverse(rows, kind=_Inverse):
        return kind.apply(rows, torch.linalg.pinv(rows.detach().mT))

    assert gradcheck(inverse, rows, check_forward_ad=True)
    assert gradgradcheck(inverse, rows)
    assert gradcheck(lambda rows: inverse(rows, _CompiledInverse), rows)


@pytest.mark.parametrize("shape", [(24, 24), (8, 24)])
def test_an_inverse_is_followed(shape):
    v = torch.stack([singular(np.linspace(0.5, 2.0, shape[0]), shape[1])] * 2)
    inverse = torch.linalg.pinv(v.mT)
    for step in range(20):
        v = v + 0.03 * random(2, *shape, seed=step)
        inverse = followed_inverse(v, inverse)
        torch.testing.assert_close(inverse, torch.linalg.pinv(v.mT), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("shape", [(24, 24), (8, 24)])
@pytest.mark.parametrize("start", [0.0, 100.0, float("nan")])
def test_an_inverse_that_was_lost_is_found_again_with_eigenvalues_inside_all_the_while(shape, start):
    v, spectrum = random(1, *shape), torch.linspace(0.0, 1.0, shape[0], dtype=torch.float64)
    inverse = torch.full_like(v, start)
    for _ in range(30):
        inverse = followed_inverse(v, inverse)
        found = np.linalg.eigvals((v[0].mT @ (spectrum[:, None] * inverse[0])).numpy())
        assert found.real.min() > -1e-9
        assert found.real.max() < 1 + 1e-9
    torch.testing.assert_close(inverse, torch.linalg.pinv(v.mT))


def singular(values: np.ndarray, dim: int) -> Tensor:
    left, right = np.linalg.qr(random(len(values), len(values)))[0], np.linalg.qr(random(dim, dim, seed=1))[0]
    return torch.tensor(left @ np.diag(values) @ right[: len(values)])


@pytest.mark.parametrize(("rows", "dim"), [(24, 24), (10, 24)])
@pytest.mark.parametrize("largest", [1.0, 0.5])
@pytest.mark.parametrize("past", [1.05, 2.0])
def test_singular_values_past_the_limit_come_back_and_the_others_stay(rows, dim, largest, past):
    values = np.linspace(0.1, past, rows)
    found = clipped_rows(singular(largest * values, dim)[None], largest)
    wanted = singular(largest * values.clip(max=1.0), dim)
    np.testing.assert_allclose(found[0].numpy(), wanted.numpy(), atol=1e-3)
    assert np.linalg.norm(found[0].numpy(), 2) < largest * (1 + 1e-5)


def test_rows_inside_the_limit_keep_every_bit():
    inside = singular(np.linspace(0.1, 0.6, 24), 24)[None].float()
    assert torch.equal(clipped_rows(inside, 1.0), inside)


def test_clipping_survives_a_step_that_is_much_too_long():
    rows = 10 * random(1, 8, 12)
    for _ in range(12):
        rows = clipped_rows(rows, 1.0)
        assert np.linalg.norm(rows[0].numpy(), 2) < 1.05
    np.testing.assert_allclose(np.linalg.svd(rows[0].numpy())[1], 1.0, atol=1e-2)


@pytest.mark.parametrize("options", [{"basis": "gram", "eigenvalues": "clip"}, {}])
def test_a_record_of_before_the_schur_form_means_the_rescaled_gram_form(options, tmp_path):
    plain = nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 48, 0.0, batch_first=True), 2)
    model = remedies.apply(copy.deepcopy(plain), "sharpen", basis="gram", eigenvalues="rescale").eval()
    with torch.no_grad():
        model.layers[0].self_attn.in_proj_weight.mul_(3.0)
    record = remedies.save(model, tmp_path / "saved") / "remedies.json"
    content = json.loads(record.read_text())
    content["applied"][0]["options"] = {"start": "project", "limit": 1.0, "size": 0.5, **options}
    record.write_text(json.dumps(content))
    again = remedies.restore(plain, record.parent).eval()
    assert isinstance(again.layers[0].unsmooth.sharpen.form, RescaledGram)
    assert remedies.applied(again)[0].report[0]["scale"] < 0.9
    x = torch.randn(2, 5, 32)
    assert torch.equal(model(x), again(x))
