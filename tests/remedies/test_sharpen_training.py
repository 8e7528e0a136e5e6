"""Sharpen and smooth while a model trains: the interval, gradients, and the ways torch runs a step."""

from __future__ import annotations

import copy
import os

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, jvp, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from tests.remedies.hosts import BY_NAME
from unsmooth import remedies
from unsmooth.models import value_projection

BASES = ["schur", "general", "orthogonal", "gram"]
ENDS = {"sharpen": (-1.0, 0.0), "smooth": (0.0, 1.0)}


def encoder(remedy: str = "sharpen", dtype: torch.dtype = torch.float32, **options) -> nn.Module:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 4, 48, 0.0, batch_first=True, norm_first=True)
    model = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return remedies.apply(model.to(dtype), remedy, **options)


def loss_of(model: nn.Module) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    x, wanted = torch.randn(2, 4, 6, 32, generator=generator)
    out = model(x.to(next(model.parameters()).dtype))
    return (out.to(torch.promote_types(out.dtype, torch.float32)) - wanted).square().mean()


def train(model: nn.Module, steps: int, rate: float = 1e-2) -> nn.Module:
    optimiser = torch.optim.AdamW(model.parameters(), lr=rate)
    model.train()
    for _ in range(steps):
        optimiser.zero_grad()
        loss_of(model).backward()
        optimiser.step()
    return model


def spectrum(model: nn.Module, layer: int) -> np.ndarray:
    """Eigenvalues of the summed H; where an orthonormal V makes it triangular, from the diagonal.

    There H may be defective, and its eigenvalues could be computed to no more than a root of the precision.
    """
    h, q = value_projection(model, layer).summed(), v_of(model, layer)
    triangle = q @ h.double().numpy() @ q.T
    off = max(np.abs(q @ q.T - np.eye(len(q))).max(), np.abs(np.tril(triangle, -1)).max() / float(h.norm()))
    if off < (1e-2 if next(model.parameters()).dtype == torch.bfloat16 else 1e-5):
        return np.diag(triangle)
    return np.linalg.eigvals(h.double().numpy())


def outside(found: np.ndarray, remedy: str) -> float:
    low, high = ENDS[remedy]
    return max(low - found.real.min(), found.real.max() - high)


def v_of(model: nn.Module, layer: int) -> np.ndarray:
    return model.layers[layer].self_attn.in_proj_weight[64:].detach().double().numpy()


@pytest.mark.parametrize("remedy", ["sharpen", "smooth"])
@pytest.mark.parametrize(
    ("options", "while_training"),
    [
        ({"basis": "schur"}, 1e-5),
        ({"basis": "schur", "upper": 0.5}, 1e-5),
        ({"basis": "general"}, 1e-4),
        ({"basis": "orthogonal"}, 1e-5),
        ({"basis": "gram"}, 0.02),
        ({"basis": "gram", "eigenvalues": "rescale"}, 0.02),
    ],
)
def test_interval_holds_after_training(remedy, options, while_training):
    model = train(encoder(remedy, **options), 40)
    loss_of(model)  # brings it up to date with the last step, as any training pass does
    sizes = [np.abs(spectrum(model, layer)).max() for layer in range(3)]
    assert max(sizes) > 0.95, "nothing was near the end of the interval"
    assert max(outside(spectrum(model, layer), remedy) for layer in range(3)) < while_training
    remedies.fold(model)
    assert max(outside(spectrum(model, layer), remedy) for layer in range(3)) < 1e-5


@pytest.mark.parametrize("basis", ["schur", "orthogonal"])
def test_orthonormal_after_training(basis):
    model = train(encoder(basis=basis), 40)
    loss_of(model)
    for layer in range(3):
        v = v_of(model, layer)
        assert np.linalg.norm(v @ v.T - np.eye(32), 2) < 1e-5


def test_optimisers_that_write_by_data_are_noticed():
    for basis in BASES:
        model = encoder(basis=basis).train()
        for _ in range(5):
            loss_of(model)
            with torch.no_grad():
                for name, parameter in model.named_parameters():
                    if name.endswith("in_proj_weight"):
                        parameter.data.add_(0.02 * torch.randn_like(parameter))
        model.eval()
        for layer in range(3):
            assert outside(spectrum(model, layer), "sharpen") < 1e-5


def scaled_by_one_vector(model):
    vector_to_parameters(1.5 * parameters_to_vector(model.parameters()).detach(), model.parameters())


def scaled_one_by_one(model):
    for parameter in model.parameters():
        parameter.data = 1.5 * parameter.data


def moved_twice(model):
    for parameter in model.parameters():
        kept = 1.5 * parameter.data
        parameter.data = torch.zeros_like(kept)
        parameter.data = kept.clone()  # maybe where the first ones lay


def written_in_place(model):
    for parameter in model.parameters():
        parameter.data.mul_(1.5)
    model.eval()  # as it says in the docstring


@pytest.mark.parametrize("change", [scaled_by_one_vector, scaled_one_by_one, moved_twice, written_in_place])
@pytest.mark.parametrize("remedy", ["sharpen", "smooth"])
@pytest.mark.parametrize("basis", BASES)
@pytest.mark.filterwarnings("ignore:The condition number")
def test_weights_that_data_replaces_in_evaluation_are_noticed(basis, remedy, change):
    model = encoder(remedy, basis=basis).eval()
    loss_of(model)
    change(model)
    loss_of(model)
    for layer in range(3):
        assert outside(spectrum(model, layer), remedy) < 1e-5


@pytest.mark.parametrize("basis", BASES)
def test_weights_left_alone_in_evaluation_are_not_settled_again(basis, monkeypatch):
    model = encoder(basis=basis).eval()
    loss_of(model)
    kind = type(model.layers[0].unsmooth.sharpen.form)
    monkeypatch.setattr(kind, "settle", lambda form: pytest.fail("settled again"))
    loss_of(model)
    loss_of(model.to("cpu"))


@pytest.mark.parametrize(
    ("options", "of"),
    [
        ({"basis": "orthogonal"}, "psi"),
        ({"basis": "general"}, "psi"),
        ({"basis": "general"}, "V"),
        ({"basis": "schur"}, "psi"),
        ({"basis": "schur"}, "upper"),
        ({"basis": "schur", "upper": 0.4}, "upper"),
    ],
)
def test_gradients_are_those_of_the_weights_in_use(options, of):
    # In float64 against finite differences along a random direction, of what B or V and ψ stand for.
    model = encoder(**options, dtype=torch.float64).eval()
    form = model.layers[1].unsmooth.sharpen.form
    moved = model.layers[1].self_attn.in_proj_weight if of == "V" else getattr(form, of)
    generator = torch.Generator().manual_seed(4)
    if options.get("upper"):
        with torch.no_grad():
            moved.mul_(1.5)  # past the cap
    if of == "psi":
        with torch.no_grad():  # away from the ends, where a straight-through gradient is the true one
            moved.copy_(-0.2 - 0.6 * torch.rand(moved.shape, generator=generator, dtype=torch.float64))
    direction = torch.randn(moved.shape, generator=generator, dtype=torch.float64)
    loss_of(model).backward()
    step, found = 1e-5, []
    for sign in (1, -1):
        with torch.no_grad():
            moved.add_(sign * step * direction)
            found.append(float(loss_of(model)))
            moved.sub_(sign * step * direction)
    numeric = (found[0] - found[1]) / (2 * step)
    assert float((moved.grad * direction).sum()) == pytest.approx(numeric, rel=1e-3)


@pytest.mark.parametrize("eigenvalues", ["clip", "rescale"])
def test_gradient_of_gram_is_that_of_both_its_places(eigenvalues):
    # With the cap as a constant, dL/dB is what the value weight gets plus ∓s² times what the output weight gets.
    model = encoder(basis="gram", eigenvalues=eigenvalues, dtype=torch.float64).eval()
    if eigenvalues == "rescale":
        with torch.no_grad():
            for layer in model.layers:
                layer.self_attn.in_proj_weight[64:] *= 1.5
        model.eval()
    scale = [1 / max(1.0, np.linalg.norm(v_of(model, layer), 2) ** 2) for layer in range(3)]
    assert (max(scale) < 0.9) == (eigenvalues == "rescale"), "one cap is a factor, the other none"
    plain = remedies.fold(copy.deepcopy(model))
    loss_of(model).backward()
    loss_of(plain).backward()
    for layer in range(3):
        attention = plain.layers[layer].self_attn
        wanted = attention.in_proj_weight.grad[64:] - scale[layer] * attention.out_proj.weight.grad.T
        torch.testing.assert_close(model.layers[layer].self_attn.in_proj_weight.grad[64:], wanted, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("basis", BASES)
def test_transforms_of_torch_func(basis, mode):
    model = getattr(encoder(basis=basis, dtype=torch.float64), mode)()
    x, along = torch.randn(2, 3, 6, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    parameters = {name: parameter.detach() for name, parameter in model.named_parameters()}

    def loss(parameters, one):
        return functional_call(model, parameters, (one.unsqueeze(0),)).square().sum()

    model.eval()  # power steps of training change the model from pass to pass
    model(x).square().sum().backward()
    getattr(model, mode)()
    with sdpa_kernel(SDPBackend.MATH):  # which alone has forward derivatives
        each = vmap(grad(loss), in_dims=(None, 0))(parameters, x)
        together = vmap(model)(x.unsqueeze(1)).squeeze(1)
        model.eval()
        _, slope = jvp(lambda x: model(x).square().sum(), (x,), (along,))
        steep = grad(lambda x: model(x).square().sum())(x)
        by_weights = jvp(lambda p: loss(p, x[0]), (parameters,), (parameters,))[1]
        up = grad(loss)(parameters, x[0])
    tolerance = {"rtol": 1e-3, "atol": 1e-3} if mode == "train" and basis == "gram" else {}
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(each[name].sum(0), parameter.grad, **tolerance)
    torch.testing.assert_close(together, model(x), **tolerance)
    torch.testing.assert_close(slope, (steep * along).sum())
    torch.testing.assert_close(by_weights, sum((up[name] * parameters[name]).sum() for name in up))


def test_eigenvalues_outside_the_interval_come_back():
    model = encoder(basis="orthogonal")
    psi = model.layers[0].unsmooth.sharpen.form.psi
    with torch.no_grad():
        psi.fill_(0.5)
    loss_of(model).backward()
    assert (psi.grad != 0).all()


@pytest.mark.parametrize(
    ("host", "basis"),
    [
        *[("torch_post", "gram"), ("neox_parallel", "orthogonal"), ("gpt2", "general"), ("llama", "general")],
        *[("gpt2", "schur"), ("llama", "schur")],
    ],
)
def test_compiled_training_step_is_the_eager_one(host, basis):
    case = BY_NAME[host]
    model = remedies.apply(case.model(), "sharpen", basis=basis).train()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("v_proj.weight", "in_proj_weight", "c_attn.weight", "query_key_value.weight")):
                parameter.add_(0.01 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(2)))
    twin = copy.deepcopy(model)
    call = case.call(case.inputs())
    call = {**call, "use_cache": False} if case.cached else call
    torch._dynamo.reset()
    compiled = torch.compile(twin, fullgraph=True, backend="aot_eager")
    for runner in (model, compiled):
        for _ in range(2):
            case.output(runner, call).square().mean().backward()
    torch._dynamo.reset()
    for (name, one), two in zip(model.named_parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(two, one, atol=1e-5, rtol=1e-4, msg=name)
        torch.testing.assert_close(two.grad, one.grad, atol=1e-4 * max(1.0, float(one.grad.abs().max())), rtol=1e-3)
    for one, two in zip(model.buffers(), twin.buffers(), strict=True):
        torch.testing.assert_close(two, one, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("basis", BASES)
def test_two_forward_passes_before_one_backward(basis):
    model = encoder(basis=basis).train()
    train(model, 2)
    for _ in range(50):
        loss_of(model)  # until power steps have nothing left to find
    once = torch.autograd.grad(loss_of(model), list(model.parameters()))
    twice = torch.autograd.grad(loss_of(model) + loss_of(model), list(model.parameters()))
    for one, two in zip(once, twice, strict=True):
        torch.testing.assert_close(two, 2 * one, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("basis", BASES)
def test_autocast_trains_weights_of_full_precision(basis):
    model = encoder(basis=basis).train()
    with torch.autocast("cpu", torch.bfloat16):
        loss_of(model).backward()
    assert all(parameter.grad.dtype == torch.float32 for parameter in model.parameters())
    model.eval()
    for layer in range(3):
        assert outside(spectrum(model, layer), "sharpen") < 1e-5


@pytest.mark.parametrize("basis", ["gram", "orthogonal", "schur"])
def test_half_precision_weights(basis):
    model = train(encoder(basis=basis, dtype=torch.bfloat16), 20)
    model.eval()
    for layer in range(3):
        assert outside(spectrum(model, layer), "sharpen") < 1e-2
        if basis != "gram":
            v = v_of(model, layer)
            assert np.linalg.norm(v @ v.T - np.eye(32), 2) < 1e-2
            master = model.layers[layer].unsmooth.sharpen.form.master
            assert master.dtype == torch.float32
            m = master.double().numpy()
            assert np.linalg.norm(m @ m.T - np.eye(32), 2) < 1e-5
            assert torch.equal(master.bfloat16().double(), torch.tensor(v))


def test_steps_on_half_precision_weights_are_taken_by_the_original():
    model = encoder(basis="orthogonal", dtype=torch.bfloat16).train()
    form = model.layers[0].unsmooth.sharpen.form
    weight = model.layers[0].self_attn.in_proj_weight
    start = form.master.clone()
    loss_of(model)
    with torch.no_grad():
        weight[64, 0] += 0.05
    loss_of(model)
    moved = (form.master - start).abs()
    assert moved[0, 0] > 0.02
    assert moved.max() < 0.06


def test_cast_after_applying_keeps_an_original():
    model = encoder(basis="orthogonal").eval().bfloat16()
    loss_of(model)
    form = model.layers[0].unsmooth.sharpen.form
    assert form.master.dtype == torch.float32
    gram = encoder(basis="gram", eigenvalues="rescale").bfloat16().layers[0].unsmooth.sharpen.form
    assert gram.factor.dtype == gram.direction.dtype == torch.float32


@pytest.mark.parametrize("basis", BASES)
def test_evaluation_agrees_with_the_folded_model_right_after_a_step(basis):
    model = train(encoder(basis=basis), 5, rate=3e-2).eval()
    folded = remedies.fold(copy.deepcopy(model))
    with torch.no_grad():
        torch.testing.assert_close(loss_of(model), loss_of(folded), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("basis", BASES)
def test_weights_loaded_in_evaluation_are_in_use_in_a_compiled_model(basis):
    model, other = encoder(basis=basis).eval(), train(encoder(basis=basis), 5, rate=3e-2)
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        loss_of(compiled)
        model.load_state_dict(other.state_dict())
        found = loss_of(compiled)
        torch._dynamo.reset()
        torch.testing.assert_close(found, loss_of(other.eval()), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("basis", BASES)
def test_sharded_training_is_the_whole_one(basis, tmp_path):
    from torch import distributed
    from torch.distributed.fsdp import fully_shard

    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        whole = encoder(basis=basis)
        sharded = copy.deepcopy(whole)
        for block in sharded.layers:
            fully_shard(block)
        fully_shard(sharded)
        train(whole, 4)
        train(sharded, 4)
        with torch.no_grad():
            torch.testing.assert_close(loss_of(sharded.eval()), loss_of(whole.eval()), rtol=1e-5, atol=1e-6)
    finally:
        distributed.destroy_process_group()
