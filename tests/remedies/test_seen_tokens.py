from __future__ import annotations

import pytest
import torch
from torch import Tensor

from unsmooth.remedies.call import Call
from unsmooth.remedies.seen_tokens import average_by_likeness, likeness_sums, seen_tokens


def call_of(x: Tensor, causal: bool, real: Tensor | None = None, starts: Tensor | None = None) -> Call:
    return Call(x, causal, real, starts, None, {})


def weights(x: Tensor, seen: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """S and the sums of its rows before the division, written out."""
    unit = x / x.norm(dim=-1, keepdim=True)
    raw = (unit @ unit.mT / temperature).exp() * seen
    return raw / raw.sum(-1, keepdim=True), raw.sum(-1, keepdim=True)


LOWER = torch.ones(6, 6).tril().bool()
REAL = torch.tensor([[1, 1, 1, 1, 1, 1], [0, 0, 1, 1, 1, 1]]).bool()
STARTS = torch.tensor([[0, 0, 0, 1, 0, 0], [0, 0, 0, 0, 1, 0]]).bool()
PART = torch.tensor([[0, 0, 0, 1, 1, 1], [0, 0, 0, 0, 1, 1]])
WHO = {
    "encoder": (call_of(REAL, False), torch.ones(2, 6, 6).bool()),
    "padded encoder": (call_of(REAL, False, REAL), REAL[:, None].expand(2, 6, 6)),
    "decoder": (call_of(REAL, True), LOWER.expand(2, 6, 6)),
    "padded decoder": (call_of(REAL, True, REAL), LOWER & REAL[:, None]),
    "packed decoder": (
        call_of(REAL, True, REAL, STARTS),
        LOWER & REAL[:, None] & (PART[:, :, None] == PART[:, None]),
    ),
}


@pytest.mark.parametrize("temperature", [1.0, 0.2])
@pytest.mark.parametrize("who", WHO)
def test_average_is_over_those_in_sight(who: str, temperature: float) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 6, 4, dtype=torch.double)
    call, may_see = WHO[who]
    seen = seen_tokens(x, call, "x")
    got = average_by_likeness(x, x, seen, temperature)
    wanted = weights(x, may_see, temperature)[0] @ x
    real = torch.ones_like(REAL) if call.real_BN is None else REAL
    torch.testing.assert_close(got[real], wanted[real])
    assert got.isfinite().all(), "padding sees something, or its gradients would be NaN"


@pytest.mark.parametrize("who", ["encoder", "padded encoder"])
def test_sums_of_rows(who: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 6, 4, dtype=torch.double)
    call, may_see = WHO[who]
    got = likeness_sums(x, seen_tokens(x, call, "x"), 0.5)
    torch.testing.assert_close(got, weights(x, may_see, 0.5)[1])


class Notebook:
    """Stands in for the place in a key/value cache."""

    def __init__(self) -> None:
        self.kept: dict[str, Tensor] = {}
        self.past = 0

    def read(self, key: str) -> Tensor | None:
        return self.kept[key] if self.past else None

    def write(self, key: str, value: Tensor) -> None:
        self.kept[key] = value


@pytest.mark.parametrize("who", ["decoder", "padded decoder", "packed decoder"])
@pytest.mark.parametrize("sizes", [(1,) * 6, (2, 1, 3), (4, 2)])
def test_piece_by_piece_is_the_whole(who: str, sizes: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 6, 4, dtype=torch.double)
    whole = WHO[who][0]
    wanted = average_by_likeness(x, x, seen_tokens(x, whole, "x"), 1.0)
    notebook, made = Notebook(), []
    for piece in torch.arange(6).split(sizes):
        real = None if whole.real_BN is None else whole.real_BN[:, piece]
        starts = None if whole.starts_BN is None else whole.starts_BN[:, piece]
        call = Call(x[:, piece], True, real, starts, notebook, {})  # type: ignore[arg-type]
        seen = seen_tokens(x[:, piece], call, "x")
        made.append(average_by_likeness(x[:, piece], seen.tokens_BMD, seen, 1.0))
        notebook.past += len(piece)
    torch.testing.assert_close(torch.cat(made, 1), wanted)


def test_a_sequence_of_padding_alone_gives_no_nan() -> None:
    x = torch.randn(1, 3, 4, requires_grad=True)
    seen = seen_tokens(x, call_of(x, False, torch.zeros(1, 3).bool()), "x")
    average_by_likeness(x, x, seen, 1.0).sum().backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.half, torch.bfloat16, torch.float])
def test_tokens_of_zeros_have_no_direction_and_no_gradient_of_one(dtype: torch.dtype) -> None:
    x = torch.randn(2, 6, 4, generator=torch.Generator().manual_seed(0)).to(dtype)
    x[0, 2], x[1, 4:] = 0, 0
    x.requires_grad_()
    for real in (None, torch.arange(6) < torch.tensor([[6], [4]])):
        found = average_by_likeness(x, x, seen_tokens(x, call_of(x, False, real), "x"), 1.0)
        (of_x,) = torch.autograd.grad(found.square().sum(), x)
        assert found.isfinite().all()
        assert of_x.abs().max() < 100
