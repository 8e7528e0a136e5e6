"""Remedies on a GPU: what the CPU gives, and inside one captured graph what a step by step run gives."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import unsmooth
from tests.remedies.hosts import FAMILIES
from tests.remedies.settings import SETTINGS
from unsmooth.models import value_projection
from unsmooth.remedies.blend import blend, blend_whole

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine"),
]
PAIRS = [(name, label) for name, settings in SETTINGS.items() for label in settings]


@pytest.mark.parametrize("host", FAMILIES, ids=lambda host: host.name)
@pytest.mark.parametrize(("name", "label"), PAIRS)
def test_the_gpu_gives_what_the_cpu_gives(host, name, label):
    torch.manual_seed(0)
    call = host.call(host.inputs())
    try:
        here = unsmooth.apply(host.model(), name, **SETTINGS[name][label].options)
        with torch.no_grad():
            one = host.output(here, call)  # some refuse a host by its call alone
    except unsmooth.UnsmoothError as error:
        pytest.skip(str(error))
    there = copy.deepcopy(here).cuda()
    moved = {key: value.cuda() if isinstance(value, torch.Tensor) else value for key, value in call.items()}
    with torch.no_grad():
        two = host.output(there, moved)
    torch.testing.assert_close(two.cpu(), one, atol=2e-4, rtol=2e-4)


@pytest.mark.parametrize("learned", [False, True])
@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("shape", [(3, 65, 192), (2, 1000, 70), (5, 1, 8), (2, 7, 3, 16)])
def test_the_kernels_give_what_plain_operations_give(shape, apart, learned):
    torch.manual_seed(0)
    x, of, along = (torch.randn(shape, dtype=torch.double, requires_grad=one < 2) for one in range(3))
    weights = (0.3, -0.7)
    if learned:
        weights = tuple(torch.randn(shape[2:], dtype=torch.double, requires_grad=True) for _ in range(2))
    inputs = [x, *([of] if apart else []), *(weights if learned else ())]
    mean = (of if apart else x).mean(dim=1, keepdim=True)
    wanted = x + weights[0] * x + weights[1] * mean
    grads = torch.autograd.grad((wanted * along).sum(), inputs)
    there = {id(one): one.detach().float().cuda().requires_grad_() for one in inputs}
    moved = [there.get(id(one), one) for one in (x, of if apart else x, *weights)]
    found = blend_whole(*moved)
    torch.testing.assert_close(found.cpu().double(), wanted, atol=1e-5, rtol=1e-5)
    found_grads = torch.autograd.grad((found * along.float().cuda()).sum(), [there[id(one)] for one in inputs])
    for one, other in zip(found_grads, grads, strict=True):
        torch.testing.assert_close(one.cpu().double(), other, atol=1e-4, rtol=1e-4)
    half = [one.detach().bfloat16() if isinstance(one, torch.Tensor) and one.ndim > 2 else one for one in moved]
    torch.testing.assert_close(blend_whole(*half).cpu().double(), wanted, atol=0.05, rtol=0.02)


def test_the_kernels_have_forward_derivatives_and_second_ones():
    torch.manual_seed(0)
    x, gain, shift = torch.randn(2, 5, 8).cuda(), torch.randn(8).cuda(), torch.randn(8).cuda()
    along = torch.randn(2, 5, 8).cuda()
    _, found = torch.func.jvp(lambda x: blend_whole(x, x, gain, shift), (x,), (along,))
    torch.testing.assert_close(found, along + gain * along + shift * along.mean(dim=1, keepdim=True))
    shift.requires_grad_()
    x.requires_grad_()
    (first,) = torch.autograd.grad((blend_whole(x, x, gain, shift) ** 2).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), shift)
    plain = blend(x, x.mean(dim=1, keepdim=True), gain, shift)
    (first,) = torch.autograd.grad((plain**2).sum(), x, create_graph=True)
    torch.testing.assert_close(second, torch.autograd.grad(first.square().sum(), shift)[0], atol=1e-2, rtol=1e-4)


@pytest.mark.parametrize("basis", ["schur", "general", "orthogonal", "gram"])
@pytest.mark.parametrize(("name", "low", "high"), [("sharpen", -1.0, 0.0), ("smooth", 0.0, 1.0)])
def test_the_interval_holds_after_steps_in_one_captured_graph(basis, name, low, high):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(64, 4, 128, 0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False).cuda()
    unsmooth.apply(model, name, basis=basis, start="fresh", **({"upper": 0.01} if basis == "schur" else {}))
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3, capturable=True)
    x, target = torch.randn(8, 16, 64, device="cuda"), torch.randn(8, 16, 64, device="cuda")

    def step() -> None:
        with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
            loss = (model(x).float() - target).square().mean()
        loss.backward()
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    before = [parameter.detach().clone() for parameter in model.parameters()]
    for _ in range(300):
        graph.replay()
    assert all(not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    unsmooth.fold(model)
    for block in range(3):
        eigenvalues = torch.linalg.eigvals(value_projection(model, block).summed().double())
        tolerance = 1e-2 if basis == "gram" else 1e-4
        assert eigenvalues.imag.abs().max() < tolerance
        assert eigenvalues.real.min() > low - tolerance
        assert eigenvalues.real.max() < high + tolerance


def test_sums_stay_exact_under_autocast():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(64, 4, 128, 0.0, batch_first=True, norm_first=True)
    model = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False).cuda()
    unsmooth.apply(model, "deescalate", place="residual", first="remove")
    # A mean a thousand times the rest: what is left of it after the block is rounding, not a lost sum.
    x = torch.randn(2, 4000, 64, device="cuda") + 1000.0 * torch.randn(64, device="cuda")
    seen = []
    model.layers[0].norm2.register_forward_pre_hook(lambda module, args: seen.append(args[0].detach()))
    with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
        model(x)
    left = seen[0].double().mean(dim=1).norm() / x.double().mean(dim=1).norm()
    assert left < 1e-5
