"""Means by likeness: the kernels, a GPU's or the interpreter's, against the formula in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

import unsmooth
from tests.remedies.hosts import BY_NAME
from tests.remedies.test_mixed_heads import ON, needs_kernels
from unsmooth.remedies import likeness
from unsmooth.remedies.seen_tokens import Seen, average_by_likeness

SHAPES = [(2, 1, 8), (2, 17, 24), (1, 33, 72), (3, 65, 16), (2, 20, 192), (1, 128, 300)]


def written_out(x_BND: Tensor, temperature: float) -> Tensor:
    unit = x_BND / x_BND.norm(dim=-1, keepdim=True).clamp(min=1e-12)
    return (unit @ unit.mT / temperature).softmax(dim=-1) @ x_BND


def tokens(shape: tuple[int, int, int]) -> Tensor:
    """Some of very different lengths, with something in common."""
    torch.manual_seed(0)
    lengths = 10.0 ** torch.linspace(-2.0, 2.0, shape[1], dtype=torch.double)[:, None]
    return lengths * (torch.randn(shape, dtype=torch.double) + torch.randn(shape[-1], dtype=torch.double))


def by_kernels(x: Tensor, temperature: float, half: torch.dtype, along: Tensor) -> tuple[Tensor, Tensor]:
    """The mean and the gradient of the tokens, both brought back in float64."""
    moved = x.to(ON).requires_grad_()
    found, *_ = torch.ops.unsmooth.likeness(moved, temperature, half)
    assert found.dtype == half
    (grad,) = torch.autograd.grad((found * along.to(found)).sum(), moved)
    assert grad.dtype == x.dtype
    return found.detach().cpu().double(), grad.cpu().double()


def both(x: Tensor, temperature: float) -> tuple[Tensor, Tensor, Tensor]:
    """By the formula: the mean, the gradient, and what that is of."""
    exact = x.double().requires_grad_()
    wanted = written_out(exact, temperature)
    along = torch.randn(wanted.shape, dtype=torch.double)
    return wanted.detach(), torch.autograd.grad((wanted * along).sum(), exact)[0], along


@needs_kernels
@pytest.mark.parametrize("temperature", [0.05, 1.0, 10.0])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_kernels_give_what_the_formula_gives(shape: tuple[int, int, int], temperature: float) -> None:
    x = tokens(shape).float()
    wanted, gradient, along = both(x, temperature)
    found, grad = by_kernels(x, temperature, torch.float32, along)
    # On a GPU products of float32 are of ten bits here; it is half precision that the kernels are for.
    tolerance = 1e-5 if ON == "cpu" else 5e-3
    for one, other in ((found, wanted), (grad, gradient)):
        away = (one - other).norm(dim=-1) / other.norm(dim=-1).clamp(min=1e-6 * float(other.norm()))
        assert float(away.max()) <= tolerance * (1.0 + 1.0 / temperature)


@needs_kernels
@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("given", ["halves", "floats", "apart"])
def test_in_half_precision(half: torch.dtype, given: str) -> None:
    if ON == "cpu" and half == torch.bfloat16:
        pytest.skip("the interpreter counts without bfloat16")
    torch.manual_seed(0)
    x = torch.randn(2, 65, 24) + torch.randn(24)
    if given == "apart":  # as a layer that takes tokens first hands them on
        x = x.transpose(0, 1).contiguous().transpose(0, 1)
    x = x.to(half) if given == "halves" else x
    wanted, gradient, along = both(x, 1.0)
    found, grad = by_kernels(x, 1.0, half, along)
    tolerance = 2e-3 if half == torch.float16 else 2e-2
    assert float((found - wanted).norm()) <= tolerance * float(wanted.norm())
    assert float((grad - gradient).norm()) <= 4.0 * tolerance * float(gradient.norm())


@needs_kernels
def test_a_token_of_zeros() -> None:
    x = tokens((1, 5, 8)).float()
    x[0, 2] = 0.0
    wanted, gradient, along = both(x, 1.0)
    found, grad = by_kernels(x, 1.0, torch.float32, along)
    rest = [0, 1, 3, 4]
    tolerance = 1e-5 if ON == "cpu" else 5e-3
    for one, other in ((found, wanted), (grad[:, rest], gradient[:, rest])):
        away = (one - other).norm(dim=-1) / other.norm(dim=-1)
        assert float(away.max()) <= 2.0 * tolerance
    # Divided by 1e-12, the length that torch takes for none; zeros have no direction to be turned back by.
    torch.testing.assert_close(
        grad[:, 2] / gradient[:, 2].norm(), gradient[:, 2] / gradient[:, 2].norm(), atol=1e-2, rtol=0
    )


@needs_kernels
def test_the_operators_are_what_torch_expects() -> None:
    x = tokens((2, 5, 8)).float().to(ON).requires_grad_()
    checks = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
    torch.library.opcheck(likeness._average, (x, 1.0, torch.float32), test_utils=checks)


def test_what_the_kernels_are_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(likeness, "may_fuse", lambda: True)

    class There(Tensor):
        is_cuda = True

    def there(shape: tuple[int, ...], dtype: torch.dtype) -> Any:
        return torch.zeros(shape, dtype=dtype).as_subclass(There)

    assert likeness.has_kernels(there((2, 5, 192), torch.bfloat16))
    assert not likeness.has_kernels(there((2, 5, 192), torch.float32))
    assert not likeness.has_kernels(there((2, 129, 192), torch.bfloat16))
    assert not likeness.has_kernels(torch.zeros(2, 5, 192, dtype=torch.bfloat16))
    monkeypatch.setattr(likeness, "may_fuse", lambda: False)
    assert not likeness.has_kernels(there((2, 5, 192), torch.bfloat16))


def test_only_whole_sequences_go_there(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(2, 5, 4)
    monkeypatch.setattr("unsmooth.remedies.seen_tokens.has_kernels", lambda x: True)
    monkeypatch.setattr("unsmooth.remedies.seen_tokens.mean_by_likeness", lambda x, temperature: "kernels")
    mask = torch.ones(2, 1, 1, 5, dtype=torch.bool)
    assert average_by_likeness(x, x, Seen(x, None, False), 1.0) == "kernels"
    for values, seen in ((x, Seen(x, mask, False)), (x, Seen(x, None, True)), (2.0 * x, Seen(x, None, False))):
        assert isinstance(average_by_likeness(x, values, seen, 1.0), Tensor)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")
@pytest.mark.parametrize("how", ["as it is", "compiled", "captured"])
def test_a_model_trains_alike_by_kernels(how: str) -> None:
    torch.manual_seed(0)
    host = BY_NAME["vit"]
    model = unsmooth.apply(host.model(), "contranorm", scale=0.5).cuda()
    call = {key: one.cuda() if isinstance(one, Tensor) else one for key, one in host.call(host.inputs()).items()}
    weights = [one for one in model.parameters() if one.requires_grad]

    def gradients(called: Any) -> list[Tensor | None]:
        with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
            out = called(**call).last_hidden_state.float()
        return list(torch.autograd.grad(out.square().sum(), weights, allow_unused=True))

    with sdpa_kernel(SDPBackend.MATH):
        wanted = gradients(model)
    if how == "captured":
        gradients(model)
        found: list[Tensor | None] = []
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found += gradients(model)
        graph.replay()
    else:
        torch._dynamo.reset()
        found = gradients(torch.compile(model, fullgraph=True) if how == "compiled" else model)
    # Some have no gradient but rounding: the same number added to every logit, as biases of keys do, changes nothing.
    least = 1e-4 * max(float(other.norm()) for other in wanted if other is not None)
    for one, other in zip(found, wanted, strict=True):
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            assert float((one - other).norm()) <= 0.1 * float(other.norm()) + least
