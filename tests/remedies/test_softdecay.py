from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.remedies.by_hand import Edits, by_hand, streams
from tests.remedies.by_hand import exact as in_float64
from tests.remedies.by_hand import near as near_by_hand
from tests.remedies.hosts import BY_NAME
from tests.remedies.written_out import near
from unsmooth.errors import UnsmoothError
from unsmooth.remedies import applied, apply
from unsmooth.remedies.catalogue.softdecay import flatter
from unsmooth.remedies.singular_values import with_singular_values


def decayed(x_ND: Tensor, alpha: float) -> Tensor:
    """One token matrix by numpy's SVD and the formula."""
    u, s, vh = np.linalg.svd(x_ND.detach().numpy(), full_matrices=False)
    new = -np.log(1 - alpha * (s + alpha)) / alpha
    return torch.from_numpy(u @ np.diag(new * s.max() / new.max()) @ vh)


def matrices(seed: int, rows: int = 6, columns: int = 4) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 3.0 * torch.randn(2, rows, columns, generator=generator, dtype=torch.double)


@pytest.mark.parametrize(("rows", "columns"), [(6, 4), (4, 6), (5, 5)])
@pytest.mark.parametrize("alpha", [-0.2, -0.9])
def test_singular_values_by_numpy(rows: int, columns: int, alpha: float) -> None:
    x = matrices(0, rows, columns)
    got = flatter(x, torch.tensor([alpha], dtype=torch.double))
    near(got, torch.stack([decayed(one, alpha) for one in x]))
    near(torch.linalg.svdvals(got)[:, 0], torch.linalg.svdvals(x)[:, 0])


def test_padding_is_no_row() -> None:
    x, alpha = matrices(1), torch.tensor([-0.2], dtype=torch.double)
    real = torch.tensor([[True] * 6, [True, True, True, False, False, False]])
    padded = x.masked_fill(~real.unsqueeze(-1), float("nan"))
    got = flatter(padded, alpha, real)
    near(got[0], decayed(x[0], -0.2))
    near(got[1, :3], decayed(x[1, :3], -0.2))
    assert got[1, 3:].isnan().all(), "padding is handed on as it was"


@pytest.mark.parametrize(("rows", "columns"), [(6, 4), (4, 6)])
def test_gradients_by_differences(rows: int, columns: int) -> None:
    x = matrices(2, rows, columns).requires_grad_()
    alpha = torch.tensor([-0.3], dtype=torch.double, requires_grad=True)
    assert torch.autograd.gradcheck(flatter, (x, alpha), check_forward_ad=True, fast_mode=True)


def in_both_ways(x: Tensor, step: Tensor, function: Callable[[Tensor], Tensor], size: float) -> Tensor:
    return (function(x + size * step) - function(x - size * step)) / (2 * size)


@pytest.mark.parametrize("spread", [0.0, 1e-9, 1e-5])
def test_gradients_are_right_where_singular_values_meet(spread: float) -> None:
    # All but the largest are one value, or nearly, where the gradient of an SVD divides by their difference.
    generator = torch.Generator().manual_seed(3)
    u, v = (torch.linalg.qr(torch.randn(5, 5, generator=generator, dtype=torch.double))[0] for _ in range(2))
    s = torch.tensor([9.0, 2.0, 2.0 - spread, 2.0 - 2 * spread, 2.0 - 3 * spread], dtype=torch.double)
    x = (u * s @ v)[None].requires_grad_()
    alpha = torch.tensor([-0.2], dtype=torch.double)
    step, weight = (torch.randn(1, 5, 5, generator=generator, dtype=torch.double) for _ in range(2))
    (flatter(x, alpha) * weight).sum().backward()
    assert x.grad.isfinite().all()
    with torch.no_grad():
        wanted = (in_both_ways(x, step, lambda y: torch.stack([decayed(one, -0.2) for one in y]), 1e-5) * weight).sum()
    near((x.grad * step).sum(), wanted, tolerance=1e-7)


@pytest.mark.parametrize(("rows", "columns"), [(6, 40), (40, 6), (8, 8)])
@pytest.mark.parametrize("rank", [3, 6])
def test_float32_by_squares_is_as_good_as_an_svd(rows: int, columns: int, rank: int) -> None:
    # Singular values from 100 down to 0.01, whose squares are 1e-8 apart: more than float32 could tell.
    generator = torch.Generator().manual_seed(6)
    u, v = (torch.linalg.qr(torch.randn(n, 6, generator=generator, dtype=torch.double))[0] for n in (rows, columns))
    s = 10.0 ** torch.linspace(2.0, -2.0, 6, dtype=torch.double)
    s[rank:] = 0.0
    x = (u * s @ v.mT)[None].float()
    weight = torch.randn(1, rows, columns, generator=generator, dtype=torch.double)
    found = []
    for given in (x.requires_grad_(), exact(x.detach(), rank).requires_grad_()):
        alpha = torch.tensor([-0.2], dtype=given.dtype, requires_grad=True)
        got = flatter(given, alpha)
        (got * weight).sum().backward()
        found.append((got.detach(), given.grad, alpha.grad))
    for one, other in zip(*found, strict=True):
        assert float((one - other).norm() / other.norm()) < 1e-5


def exact(x: Tensor, rank: int) -> Tensor:
    """Without what rounding to float32 has added."""
    u, s, vh = torch.linalg.svd(x.double(), full_matrices=False)
    return (u[..., :rank] * s[..., None, :rank]) @ vh[..., :rank, :]


def test_nothing_blows_up_for_equal_tokens_or_zeros() -> None:
    alpha = torch.tensor([-0.2], requires_grad=True)
    for x in (torch.ones(1, 4, 8), torch.zeros(1, 4, 8), torch.full((1, 1, 8), 3.0)):
        x.requires_grad_()
        got = flatter(x, alpha)
        got.sum().backward()
        near(got.detach(), x.detach(), tolerance=1e-5)  # one singular value, or none: it is the largest
        assert x.grad.isfinite().all()
        assert alpha.grad.isfinite().all()


def test_gradients_of_gradients_are_refused() -> None:
    x = matrices(4).requires_grad_()
    with pytest.raises(UnsmoothError, match="create_graph"):
        torch.autograd.grad(flatter(x, torch.tensor([-0.2])).sum(), x, create_graph=True)


def test_another_function_of_singular_values() -> None:
    # U·S³·Vᵀ is X·Xᵀ·X, whose gradient autograd knows.
    x = matrices(5).requires_grad_()
    y = matrices(5).requires_grad_()

    def slopes(s: Tensor) -> Tensor:
        a, b = s.unsqueeze(-1), s.unsqueeze(-2)
        return a * a + a * b + b * b

    got, wanted = with_singular_values(x, lambda s: s**3, slopes), y @ y.mT @ y
    near(got, wanted)
    for out in (got, wanted):
        (out * torch.arange(24.0).reshape(6, 4)).sum().backward()
    near(x.grad, y.grad, tolerance=1e-9)


@pytest.mark.parametrize("name", ["bert", "vit", "torch_tokens_first"])
def test_acts_on_what_a_block_hands_on(name: str) -> None:
    model = apply(in_float64(name), "softdecay", learn="no")
    edits = Edits(out=lambda out, bottom: torch.stack([decayed(one, -0.2) for one in out]))
    with torch.no_grad():
        near_by_hand(name, streams(name, model)[1], by_hand(name, in_float64(name), edits))


@pytest.mark.parametrize("name", ["bert", "albert", "torch_post", "torch_tokens_first"])
@pytest.mark.parametrize("gamma", [None, 0.5])
def test_official_acts_before_the_last_norm_which_reads_the_stream_once_more(name: str, gamma: float | None) -> None:
    model = apply(in_float64(name), "softdecay", alpha=-0.4, variant="official")
    if gamma is not None:  # what else is done to the branch is in the sum, in whatever order
        apply(model, "residual_scaling", scale=gamma)

    def second(stream: Tensor, branch: Tensor, bottom: Tensor) -> Tensor:
        return torch.stack([decayed(one, -0.4) for one in stream + (gamma or 1.0) * branch]) + stream

    edits = Edits(first=lambda x, a: x + (gamma or 1.0) * a, second=second)
    with torch.no_grad():
        near_by_hand(name, streams(name, model)[1], by_hand(name, in_float64(name), edits))


def test_official_is_refused_where_cross_attention_comes_between() -> None:
    decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(8, 2, 8, batch_first=True), 1)
    with pytest.raises(UnsmoothError, match="cross-attention changes the stream"):
        apply(decoder, "softdecay", variant="official")


def test_alpha_is_learned_between_minus_one_and_zero() -> None:
    host = BY_NAME["vit"]
    model = apply(host.model(), "softdecay", layers=-1)
    edit = model.layers[-1].unsmooth.softdecay
    assert math.isclose(applied(model)[0].report[2]["alpha"], -0.2, rel_tol=1e-6)
    optimiser = torch.optim.SGD([edit.raw_alpha], lr=100.0)
    for _ in range(3):
        optimiser.zero_grad()
        host.output(model, host.call(host.inputs())).square().mean().backward()
        assert edit.raw_alpha.grad.ne(0).all()
        optimiser.step()
    assert -1 < edit.report()["alpha"] < 0
    assert not math.isclose(edit.report()["alpha"], -0.2, rel_tol=1e-3)


def test_decoders_are_refused() -> None:
    with pytest.raises(UnsmoothError, match="causal form"):
        apply(BY_NAME["gpt2"].model(), "softdecay")
