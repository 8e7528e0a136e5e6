"""Sharpen and smooth on every wiring: where the eigenvalues are, what each head does, what comes back."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from tests.remedies.hosts import BY_NAME
from unsmooth import remedies
from unsmooth.errors import UnsmoothError
from unsmooth.models import value_projection

HOSTS = ["bert", "albert", "gpt2", "neox_parallel", "llama", "vit", "torch_post"]
BASES = ["schur", "general", "orthogonal", "gram"]
ENDS = {"sharpen": (-1.0, 0.0), "smooth": (0.0, 1.0)}
HEADS, WIDTH, DIM = 4, 8, 32


def double(host: str, gain: float = 3.0) -> nn.Module:
    """In float64, with weights so large that no layer is inside the interval by itself."""
    model = BY_NAME[host].model().double()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(gain)
    return model


def weights(host: str, model: nn.Module, layer: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """W_V (D, kv heads, E) and W_O (query heads, E, D), sliced here by what is known of each family."""
    if host == "bert":
        block = model.encoder.layer[layer].attention
        value, output = block.self.value.weight.T, block.output.dense.weight.T
    elif host == "albert":
        block = model.encoder.albert_layer_groups[0].albert_layers[0].attention
        value, output = block.value.weight.T, block.dense.weight.T
    elif host == "gpt2":
        block = model.transformer.h[layer].attn
        value, output = block.c_attn.weight[:, 2 * DIM :], block.c_proj.weight
    elif host == "neox_parallel":
        block = model.gpt_neox.layers[layer].attention
        value = block.query_key_value.weight.reshape(HEADS, 3, WIDTH, DIM)[:, 2].reshape(DIM, DIM).T
        output = block.dense.weight.T
    elif host == "llama":
        block = model.model.layers[layer].self_attn
        value, output = block.v_proj.weight.T, block.o_proj.weight.T
    elif host == "vit":
        block = model.layers[layer].attention if hasattr(model, "layers") else model.encoder.layer[layer].attention
        value, output = block.v_proj.weight.T, block.o_proj.weight.T
    else:
        block = model.layers[layer].self_attn
        value, output = block.in_proj_weight[2 * DIM :].T, block.out_proj.weight.T
    value, output = value.detach().double().numpy(), output.detach().double().numpy()
    return value.reshape(DIM, -1, WIDTH), output.reshape(HEADS, WIDTH, DIM)


def per_head(value: np.ndarray, output: np.ndarray) -> list[np.ndarray]:
    group = HEADS // value.shape[1]
    return [value[:, head // group] @ output[head] for head in range(HEADS)]


def outside(eigenvalues: np.ndarray, ends: tuple[float, float]) -> float:
    real = eigenvalues.real
    return max(np.abs(eigenvalues.imag).max(), ends[0] - real.min(), real.max() - ends[1])


def eigenvalues_of(h: np.ndarray, value: np.ndarray, basis: str) -> np.ndarray:
    """By numpy; of a Schur form, which may be defective, from the triangle that its orthonormal V makes of H.

    Eigenvalues of a defective matrix cannot be computed to more than a root of the precision.
    """
    if basis != "schur":
        return np.linalg.eigvals(h)
    np.testing.assert_allclose(value.T @ value, np.eye(value.shape[1]), atol=1e-10)
    np.testing.assert_allclose(value @ value.T @ h, h, atol=1e-9)  # nothing of H is outside what V spans
    triangle = value.T @ h @ value
    np.testing.assert_allclose(np.tril(triangle, -1), 0.0, atol=1e-9)
    return np.diag(triangle)


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("basis", BASES)
@pytest.mark.parametrize("remedy", ["sharpen", "smooth"])
@pytest.mark.parametrize("start", ["project", "fresh"])
@pytest.mark.filterwarnings("ignore:The condition number")
def test_eigenvalues_of_the_summed_h_are_inside(host, basis, remedy, start):
    model = double(host)
    assert outside(np.linalg.eigvals(sum(per_head(*weights(host, model)))), ENDS[remedy]) > 0.5
    remedies.apply(model, remedy, basis=basis, start=start)
    train_new_parameters(model)
    for found in (weights(host, model), weights(host, remedies.fold(model))):
        value, heads = found[0], per_head(*found)
        assert outside(eigenvalues_of(sum(heads), value.reshape(DIM, -1), basis), ENDS[remedy]) < 1e-9
        for place, head in enumerate(heads):
            if basis == "schur":  # HV = V(VᵀHV), so the nonzero eigenvalues are those of the small block
                own = value[:, place * value.shape[1] // HEADS]
                np.testing.assert_allclose(own @ own.T @ head, head, atol=1e-9)
                assert outside(eigenvalues_of(head @ own @ own.T, own, basis), ENDS[remedy]) < 1e-7
            else:
                assert outside(np.linalg.eigvals(head), ENDS[remedy]) < 1e-7


def train_new_parameters(model: nn.Module) -> None:
    """Move value weights and ψ, as an optimiser would."""
    torch.manual_seed(3)
    moved = ("psi", "value.weight", "v_proj.weight", "in_proj_weight", "c_attn.weight")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(moved):
                parameter.add_(0.3 * torch.randn_like(parameter))
    model.eval()


@pytest.mark.parametrize("host", ["bert", "llama"])
@pytest.mark.parametrize("basis", BASES)
@pytest.mark.filterwarnings("ignore:The condition number")
def test_each_head_has_the_eigenvalues_of_its_own_slots(host, basis):
    model = double(host)
    remedies.apply(model, "sharpen", basis=basis)
    train_new_parameters(model)
    value, output = weights(host, model)
    group = HEADS // value.shape[1]
    flat = value.reshape(DIM, -1)
    if basis == "gram":
        assert np.linalg.norm(flat, 2) == pytest.approx(1.0)  # so the cap is in use
        wanted = [-value[:, g] @ value[:, g].T for g in range(value.shape[1])]
    elif basis == "schur":
        form = model.get_submodule("encoder.layer.1" if host == "bert" else "model.layers.1").unsmooth.sharpen.form
        psi, upper = form.psi.detach().numpy(), form.upper.detach().numpy()
        rows = (np.triu(upper, 1) + np.diag(psi.clip(-1, 0))).reshape(-1, WIDTH, flat.shape[1]) @ flat.T
        wanted = [value[:, g] @ rows[g] for g in range(value.shape[1])]
    else:
        edit = model.get_submodule("encoder.layer.1" if host == "bert" else "model.layers.1").unsmooth.sharpen
        spectrum = edit.form.psi.detach().numpy().clip(-1, 0).reshape(-1, WIDTH)
        inverse = np.linalg.pinv(flat).reshape(-1, WIDTH, DIM)
        wanted = [value[:, g] @ np.diag(spectrum[g]) @ inverse[g] for g in range(value.shape[1])]
    for head, found in enumerate(per_head(value, output)):
        np.testing.assert_allclose(found * group, wanted[head // group], atol=1e-10)


def test_orthogonal_v_is_orthonormal_and_h_symmetric():
    model = remedies.apply(double("gpt2"), "smooth", basis="orthogonal")
    train_new_parameters(model)
    value, output = weights("gpt2", model)
    flat = value.reshape(DIM, -1)
    np.testing.assert_allclose(flat.T @ flat, np.eye(DIM), atol=1e-12)
    summed = sum(per_head(value, output))
    np.testing.assert_allclose(summed, summed.T, atol=1e-12)


def test_fresh_start_has_the_size_that_was_asked_for():
    for basis in BASES:
        model = remedies.apply(double("bert"), "smooth", basis=basis, start="fresh", size=0.25, limit=0.8)
        np.testing.assert_allclose(sum(per_head(*weights("bert", model))), 0.2 * np.eye(DIM), atol=1e-10)


@pytest.mark.parametrize("basis", BASES)
def test_limit_bounds_the_spectrum(basis):
    model = remedies.apply(double("bert"), "sharpen", basis=basis, limit=0.3)
    value, output = weights("bert", model)
    found = eigenvalues_of(sum(per_head(value, output)), value.reshape(DIM, -1), basis).real
    assert found.min() == pytest.approx(-0.3, abs=1e-9)


@pytest.mark.parametrize("basis", BASES)
@pytest.mark.parametrize(("limit", "lowest"), [(2.5, -2.5), (None, -9.0)])
def test_a_limit_past_one_or_none_is_a_control(basis, limit, lowest):
    # One wide head with eigenvalues −9, −2 and 1: the last has the wrong sign whatever the limit.
    model = double("bert")
    with torch.no_grad():
        attention = model.encoder.layer[1].attention
        attention.self.value.weight.copy_(torch.eye(DIM))
        attention.output.dense.weight.copy_(torch.diag(torch.tensor([-9.0, -2.0, 1.0] + [0.0] * (DIM - 3))))
    remedies.apply(model, "sharpen", basis=basis, limit=limit)
    for _ in range(2):  # and once folded
        found = np.linalg.eigvals(sum(per_head(*weights("bert", model)))).real
        np.testing.assert_allclose(sorted(found)[:3], [lowest, -2.0, 0.0], atol=1e-9)
        model = remedies.fold(model) if remedies.applied(model) else model


def test_square_has_no_bound_and_sigmoid_stays_inside():
    for how, psi, wanted in [("square", 1.5, -2.25), ("sigmoid", 2.0, -1 / (1 + np.exp(-2.0)))]:
        model = remedies.apply(double("bert"), "sharpen", basis="orthogonal", eigenvalues=how)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name.endswith("psi"):
                    parameter.fill_(psi)
        np.testing.assert_allclose(sum(per_head(*weights("bert", model))), wanted * np.eye(DIM), atol=1e-9)


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("basis", BASES)
def test_value_projection_reads_what_is_computed(host, basis):
    model = remedies.apply(double(host), "sharpen", basis=basis)
    found = value_projection(model, 0)
    value, output = weights(host, model, layer=0)
    for head, wanted in enumerate(per_head(value, output)):
        np.testing.assert_allclose(found.head(head).numpy(), wanted, atol=1e-12)


@pytest.mark.parametrize("basis", BASES)
@pytest.mark.parametrize("host", ["gpt2", "torch_post"])
def test_drift_of_the_biases_stays(host, basis):
    def drift():
        found = value_projection(model, 1)
        return torch.einsum("he,hed->d", found.b_v, found.w_o) + found.b_o

    model = double(host)
    before = drift()
    remedies.apply(model, "sharpen", basis=basis)
    torch.testing.assert_close(drift(), before, atol=1e-9, rtol=0)


@pytest.mark.parametrize("basis", BASES)
@pytest.mark.filterwarnings("ignore:The condition number")
def test_undo_after_training_gives_back_what_was_replaced(basis):
    host = BY_NAME["bert"]
    model, plain = host.model(), host.model()
    remedies.apply(model, "sharpen", basis=basis)
    train_new_parameters(model)
    remedies.undo(model)
    for (name, one), two in zip(model.named_parameters(), plain.parameters(), strict=True):
        assert torch.equal(one, two), name


def test_undo_after_a_plain_checkpoint_gives_back_that_checkpoint():
    host = BY_NAME["gpt2"]
    model, plain = remedies.apply(host.model(), "smooth", basis="orthogonal"), host.model(seed=1)
    state = copy.deepcopy(plain.state_dict())
    model.load_state_dict(state)
    for name, wanted in plain.state_dict().items():  # the caller's tensors are left alone
        assert torch.equal(state[name], wanted), name
    remedies.undo(model)
    for name, wanted in plain.state_dict().items():
        assert torch.equal(model.state_dict()[name], wanted), name


def test_undo_of_a_model_that_was_cast_since():
    host = BY_NAME["bert"]
    model = remedies.apply(host.model(), "sharpen").bfloat16()
    remedies.undo(model)
    for one, two in zip(model.parameters(), host.model().bfloat16().parameters(), strict=True):
        assert torch.equal(one, two)


def test_only_the_output_weight_stops_being_a_parameter():
    model = BY_NAME["vit"].model()
    before = {name for name, _ in model.named_parameters()}
    remedies.apply(model, "sharpen", layers=[1])
    gone = before - {name for name, _ in model.named_parameters()}
    assert [name.split(".")[-3:] for name in gone] == [["attention", "o_proj", "weight"]]


def test_value_heads_wider_than_the_stream_are_refused():
    config = LlamaConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4, head_dim=16,
        intermediate_size=48, vocab_size=50,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(UnsmoothError, match=r"4 value heads of width 16 are together wider than the stream \(32\)"):
        remedies.apply(model, "sharpen")
    assert all(torch.equal(model.state_dict()[name], value) for name, value in before.items())
    config.num_key_value_heads = 2  # 2·16 = 32: query heads may be wider
    model = remedies.apply(LlamaForCausalLM(config), "sharpen", basis="gram")
    eigenvalues = torch.linalg.eigvals(value_projection(model, 0).summed().double())
    assert outside(eigenvalues.numpy(), ENDS["sharpen"]) < 1e-5


def test_sharpen_and_smooth_exclude_each_other():
    model = remedies.apply(BY_NAME["bert"].model(), "sharpen", layers=[0])
    with pytest.raises(UnsmoothError, match="another remedy computes its output weight already"):
        remedies.apply(model, "smooth")
    remedies.apply(model, "smooth", layers=[1, 2])
    assert value_projection(model, 0).summed().trace() < 0 < value_projection(model, 1).summed().trace()


def test_general_warns_where_v_is_badly_conditioned_and_reports_it():
    model = remedies.apply(BY_NAME["bert"].model(), "sharpen", basis="general", layers=[0])
    assert remedies.applied(model)[0].report[0]["condition"] == pytest.approx(1.0, abs=1e-4)
    value = model.encoder.layer[0].attention.self.value.weight
    with torch.no_grad():
        value[0] = value[1] + 1e-3 * value[0]
    wanted = np.linalg.cond(value.detach().double().numpy())
    assert wanted > 1000
    assert remedies.applied(model)[0].report[0]["condition"] == pytest.approx(wanted, rel=0.01)
    with pytest.warns(UserWarning, match="condition number of V"):
        remedies.fold(model)
